"""The launcher: first failure wins, nothing hangs, nothing is left behind."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

import manyhands as mh
from manyhands.strategies import make_strategy
from manyhands.training.run_fit import run_fit
from manyhands.training.settings import FitSettings
from manyhands.world.launch import keeper
from manyhands.world.launch.processes import LaunchedProcess, launch
from tests.conftest import ends_soon, make_task, outlive, quick_fit

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_results_come_back_in_order_and_by_value() -> None:
    big = torch.arange(100_000.0)

    def body(process: LaunchedProcess) -> tuple[int, float, Tensor]:
        big[0] += process.index + 1
        return process.index, float(big[0]), big[:3]

    results = launch(body, 3)
    assert [(index, value) for index, value, _ in results] == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert big[0] == 0  # a rank's writes stay its own


def test_shared_tensors_are_the_same_bytes_everywhere() -> None:
    def body(process: LaunchedProcess) -> float:
        assert process.shared is not None
        process.shared["x"][process.index] = process.index + 1
        until = time.monotonic() + 60
        while process.shared["x"].min() == 0 and time.monotonic() < until:
            time.sleep(0.001)
        return float(process.shared["x"].sum())

    assert launch(body, 3, shared={"x": torch.zeros(3)}) == [6.0, 6.0, 6.0]


def test_threads_are_set() -> None:
    assert launch(lambda process: torch.get_num_threads(), 2, threads=1) == [1, 1]
    assert launch(lambda process: torch.get_num_threads(), 1, threads=2) == [2]


def fails_at(step: int, how: Any) -> Any:
    """A loss that breaks rank 1 in the given step."""
    calls = {"n": 0}

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls["n"] += 1
        if os.environ.get("RANK") == "1" and calls["n"] == step:
            how()
        return torch.nn.functional.cross_entropy(output, target)

    return loss


def broken(how: Any) -> mh.RankFailed:
    """The failure of a fit whose rank 1 breaks."""
    with ends_soon(), pytest.raises(mh.RankFailed) as caught:
        quick_fit(make_task(loss=fails_at(5, how)), "ddp", ranks=2)
    return caught.value


def test_an_exception_surfaces_once_with_rank_step_phase_and_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """The rank's own process once printed a second traceback, of its exit."""

    def boom() -> None:
        raise ValueError("the planted one")

    failure = broken(boom)
    assert str(failure) == "rank 1 of 2 failed in step 5, forward: ValueError: the planted one"
    assert "in boom" in str(failure.traceback)
    assert (failure.rank, failure.step, failure.phase, failure.kind) == (1, 5, "forward", "raised")
    assert failure.run.status == "failed"  # type: ignore[attr-defined]
    assert "SystemExit" not in capfd.readouterr().err


def test_a_killed_rank_is_noticed() -> None:
    failure = broken(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert str(failure).startswith("rank 1 of 2 died in step 5, forward: killed by signal 9 (SIGKILL)")


def test_a_rank_that_exits() -> None:
    failure = broken(lambda: os._exit(3))
    assert "rank 1 of 2 died in step 5, forward: its process exited with code 3" in str(failure)


def test_loader_workers_do_not_outlive_a_killed_rank() -> None:
    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 500

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.zeros(20), 0

    kill = fails_at(3, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(mh.RankFailed, match="rank 1 of 2 died"):
        quick_fit(make_task(train=Rows(), loss=kill), "ddp", ranks=2, loader_workers=2)


def test_a_time_limit_ends_the_run() -> None:
    slow = fails_at(2, lambda: time.sleep(3600))  # pytest's own limit ends a test that waits for it
    with pytest.raises(mh.RankFailed, match="exceeded its time limit of 1 s"):
        run_fit(make_task(loss=slow), make_strategy("ddp", 2), FitSettings(progress=False, time_limit=1.0))


SCRIPT = """
import functools, os, time, torch
before = dict(os.environ)
import manyhands as mh

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def forward(self, x):
        {pause}
        return self.layer(x)

x = torch.randn(64, 4)
task = mh.Task(model=Net, train=(x, (x[:, 0] > 0).long()), loss=torch.nn.functional.cross_entropy,
               optimizer=functools.partial(torch.optim.SGD, lr=0.1), batch_size=8)
print("ready", flush=True)
run = mh.fit(task, "ddp", ranks=2, progress=False)
print(run.steps, run.status, {{name for name in os.environ if os.environ[name] != before.get(name)}} or "")
"""
SLOW_ON_RANKS = "time.sleep(0.5 if 'RANK' in os.environ else 0)"  # not in the caller, which tries the model first


@pytest.mark.soak
@pytest.mark.parametrize("from_file", [True, pytest.param(False, marks=pytest.mark.soak)])  # -c: test_machine.py
def test_a_plain_script_needs_no_main_guard(tmp_path: Path, from_file: bool) -> None:
    """And is quiet to its end: with torch 2.15 the fork server once reported 513 leaked functions there.

    Its environment stays as it was: the first optimizer brought a variable of torch's compiler into it.
    """
    script = tmp_path / "plain.py"
    script.write_text(SCRIPT.format(pause="pass"))
    words = [str(script)] if from_file else ["-c", script.read_text()]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("ready\n8 done \n", "")


@pytest.mark.soak  # Ctrl-C: cli/test_app.py; kill -9, which is SIGTERM to a plain script: test_keeper.py
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_caller_takes_its_ranks_along(tmp_path: Path, number: int) -> None:
    process, below = _long_fit(tmp_path)
    process.send_signal(number)
    process.wait(30)  # a moment on an idle machine; a fit would go on for 4 s
    assert outlive(below) == []


@pytest.mark.soak
def test_a_caller_that_is_killed_while_all_were_stopped_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-Z and kill -9: a stopped keeper cannot see that its caller is gone, and stayed behind with its ranks."""
    process, below = _long_fit(tmp_path)
    for one in below:
        one.suspend()
    process.kill()
    process.wait(30)
    alive = outlive(below)
    for one in alive:
        one.kill()
    assert not alive


@pytest.mark.soak
@pytest.mark.parametrize("wakes", [True, False])
def test_a_keeper_that_is_stopped_when_a_rank_dies_does_not_stay(wakes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, it neither reported the death nor ended the other ranks."""
    if not wakes:
        monkeypatch.setattr(keeper, "END_LIMIT", 0.5)
        monkeypatch.setattr(keeper.Keeper, "wake", lambda self: None)

    def die() -> None:
        os.kill(os.getppid(), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(mh.RankFailed, match="rank 1 of 2 died in step 3, forward: " + ("killed" if wakes else "its")):
        quick_fit(make_task(loss=fails_at(3, die)), "ddp", ranks=2)


def _long_fit(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A program that trains, and the processes below it."""
    script = folder / "long.py"
    script.write_text(SCRIPT.format(pause=SLOW_ON_RANKS))
    words = [sys.executable, str(script)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == "ready\n"
    return process, _wait_for_ranks(process.pid)


def _wait_for_ranks(pid: int) -> list[psutil.Process]:
    """The server, the keeper and both ranks, once they train."""
    until = time.monotonic() + 90  # two interpreters import torch meanwhile, on a busy machine
    while time.monotonic() < until:
        below = psutil.Process(pid).children(recursive=True)
        if len(below) >= 4:
            time.sleep(0.3)
            return psutil.Process(pid).children(recursive=True)
        time.sleep(0.05)
    raise AssertionError("the ranks did not start")


class NotebookStream(io.StringIO):
    """What a kernel puts in place of standard output: it has no descriptor."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


def test_where_notebooks_differ_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of asyncio runs in the main thread, standard output has no descriptor, the code is in no file."""

    async def cell() -> None:
        exec(SCRIPT.format(pause="pass"), {"__name__": "__main__"})

    said = NotebookStream()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, said)
    asyncio.run(cell())
    assert "8 done" in said.getvalue()


@pytest.mark.soak  # a kernel takes seconds to start; what is different in there: above
@pytest.mark.timeout(180)
def test_it_works_in_a_notebook() -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(textwrap.dedent(SCRIPT.format(pause="pass")))]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    text = "".join(output.get("text", "") for output in book.cells[0].outputs if output.output_type == "stream")
    assert "8 done" in text


@pytest.mark.soak  # three interpreters; what torchrun tells its ranks: world/test_hosts.py, engines/test_torchrun.py
def test_torchrun_joins_instead_of_launching(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "manyhands", "train", "glyphs:train=640,test=100", "ddp", "--max-steps", "5", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    record = json.loads(done.stdout)
    assert (record["status"], record["steps"], record["ranks"]) == ("done", 5, 2)


def test_a_method_that_reads_self_classes_travels() -> None:
    """cloudpickle takes `self.classes` beside a use of torch for the module torch.classes, which has no pickle."""

    class Labels:
        classes = (3, 1)

        def total(self) -> float:
            return float(torch.tensor(self.classes).sum())

    labels = Labels()
    assert launch(lambda process: labels.total(), 1) == [4.0]
