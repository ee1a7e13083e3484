"""The doctor on tasks with something wrong, and as a command on a machine that is made tight."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import manyhands as mh
from manyhands.studies.doctor import doctor as module
from tests.breakable import net, toy
from tests.conftest import ROOT
from tests.quota import one_core_quota


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


def checks(*given: Any, **options: Any) -> dict[str, dict[str, Any]]:
    found = mh.doctor(*given, **options)
    assert list(found) == ["checks"]
    for check in found["checks"]:
        assert list(check) == ["name", "status", "message", "advice"]
        assert check["status"] in ("ok", "warning", "problem")
        assert check["advice"] is not None or check["status"] != "warning"
    return {check["name"]: check for check in found["checks"]}


class Slow(Dataset[Any]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.seconds:  # a sleep of no seconds gives the core away, and comes back when others let it
            time.sleep(self.seconds)
        return torch.full((12,), float(index)), index % 2


def test_without_a_task_only_the_machine_is_looked_at() -> None:
    found = checks(ranks=2)
    assert {"cores", "threads", "environment", "load", "memory", "shm", "files", "network", "gpu", "versions"} <= set(
        found
    )
    assert not {"travel", "batch", "data", "needs", "strategy"} & set(found)


def test_a_healthy_task_has_no_problem() -> None:
    found = checks(toy(), "ddp", ranks=2)
    assert {found[name]["status"] for name in ("travel", "strategy", "batch", "data", "needs")} == {"ok"}
    assert "ddp with 2 ranks needs about" in found["needs"]["message"]
    assert checks(toy(), ranks=2)["needs"]["status"] == "ok"


def test_a_task_that_cannot_be_built_is_a_problem_with_its_refusal() -> None:
    found = checks(toy(train=(torch.zeros(4, 12), torch.zeros(3, dtype=torch.long))), ranks=2)
    assert found["task"]["status"] == "problem"
    with pytest.raises(mh.BadInput, match="doctor needs a manyhands Task"):
        mh.doctor("glyphs")  # type: ignore[arg-type]


def test_a_model_function_that_fails_is_a_problem_of_the_task() -> None:
    """It once ended the doctor with a traceback."""

    def missing() -> nn.Module:
        raise OSError("no such file: weights.pt")

    check = checks(toy(model=missing), ranks=2)["task"]
    assert (check["status"], "OSError: no such file: weights.pt" in check["message"]) == ("problem", True)


def test_a_strategy_that_refuses_the_task() -> None:
    check = checks(toy(), "pipeline", ranks=16)["strategy"]
    assert check["status"] == "problem"
    assert "pipeline" in check["message"]


class Holding(Dataset[Any]):
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()
    check = checks(toy(train=Holding(guard=lock)), ranks=2)["travel"]
    assert check["status"] == "problem"
    assert check["message"] == "task.train.guard is a lock (lock), which cannot be sent to a rank"


def test_small_batches() -> None:
    assert "--batch-size 32" in checks(toy(batch_size=3), "ddp", ranks=4)["batch"]["advice"]
    normed = lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))  # noqa: E731
    tiny = checks(toy(model=normed, batch_size=8), "ddp", ranks=4)["batchnorm"]
    assert (tiny["status"], "--sync-batchnorm" in tiny["advice"]) == ("warning", True)
    assert checks(toy(model=normed, batch_size=4), "ddp", ranks=4)["batchnorm"]["status"] == "problem"
    assert "batchnorm" not in checks(toy(model=normed, batch_size=64), "ddp", ranks=4)


def test_a_slow_loader_is_a_warning_and_a_fast_one_is_not() -> None:
    slow = checks(toy(train=Slow(0.01), test=None), "ddp", ranks=2)["data"]
    assert slow["status"] == "warning"
    assert "ms per sample (waiting)" in slow["message"]
    assert "--loader-workers auto" in slow["advice"]
    big = lambda: nn.Sequential(nn.Linear(12, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 2))  # noqa: E731
    assert checks(toy(train=Slow(0.0), test=None, model=big), "ddp", ranks=2)["data"]["status"] == "ok"


def test_memory_counts_copies_optimizer_and_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy(optimizer=partial(torch.optim.Adam, lr=1e-3), batch_size=100)
    from manyhands.strategies import make_strategy
    from manyhands.strategies.job import StepSettings
    from manyhands.studies.doctor.needs import needs
    from manyhands.training.build import build

    found = needs(build(task, StepSettings()), 1e12)
    weights = sum(parameter.nbytes for parameter in net().parameters())
    assert found.weights == found.gradients == weights
    assert 2 * weights <= found.optimizer < 2.2 * weights
    assert 24 * 4 <= found.sample < 20 * 24 * 4
    parts = {name: found.parts(make_strategy(name, 4), 100) for name in ("ddp", "hogwild", "pipeline", "fsdp")}
    assert [parts[name]["weights"] // weights for name in parts] == [5, 2, 2, 3]
    assert [parts[name]["gradients"] // weights for name in parts] == [4, 4, 1, 2]
    monkeypatch.setattr(module, "free_memory", lambda: 1e8)
    check = checks(task, "ddp", ranks=4)["needs"]
    assert (check["status"], "of 100 MB" in check["message"]) == ("problem", True)


def test_workers_of_a_dataloader_are_counted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of so many, too
        loader = DataLoader(Slow(0.0), batch_size=8, num_workers=32)
    assert (
        "64 loader workers" in checks(toy(train=loader, test=None, batch_size=8), "ddp", ranks=2)["threads"]["message"]
    )


def run_doctor(*before: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    words = [*before, sys.executable, "-m", "manyhands", "doctor", "--ranks", "2", "--json"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT, env={**os.environ, **environment}
    )
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.mark.soak  # two processes that import torch; each check has a test of its own
@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_a_tight_machine_is_noticed() -> None:
    """One core, eight threads, few files, and a neighbour that burns the core."""
    core = str(min(os.sched_getaffinity(0)))
    burner = subprocess.Popen(["taskset", "-c", core, sys.executable, "-c", "while True: pass"])
    try:
        code, found = run_doctor(
            "taskset", "-c", core, "sh", "-c", 'ulimit -n 256; exec "$@"', "sh", OMP_NUM_THREADS="8"
        )
    finally:
        burner.kill()
        burner.wait()
    assert code == 0
    if len(os.sched_getaffinity(0)) > 1:
        assert "1 of" in found["cores"]["message"]
        assert "affinity" in found["cores"]["message"]
    assert {found[name]["status"] for name in ("threads", "environment", "files", "load")} == {"warning"}
    assert "OMP_NUM_THREADS=8" in found["environment"]["message"]
    assert found["files"]["message"].startswith("256 open files")


def test_a_real_quota_is_noticed_and_a_fit_keeps_to_it() -> None:
    code = """
import json, manyhands as mh
from manyhands.world.engines.local import Local
print(json.dumps(mh.doctor(ranks=2)["checks"][0]))
print(Local().threads(ranks=1))
"""
    with one_core_quota() as enter:
        words = [*enter, sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    cores, threads = done.stdout.splitlines()
    assert json.loads(cores)["status"] == ("warning" if (os.cpu_count() or 1) > 1 else "ok")
    assert (os.cpu_count() or 1) == 1 or "a control group grants the time of 1 cores" in cores
    assert threads == "1"


def test_the_command_says_what_to_do_and_ends_with_1_where_there_is_a_problem(command: Any, tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(
        "import threading\nfrom tests.breakable import toy\nfrom tests.studies.doctor.test_doctor import Holding\n"
        "task = toy(train=Holding(guard=threading.Lock()))\n"
    )
    code, out, _ = command("doctor", str(tmp_path / "held.py"), "ddp", "--ranks", "2")
    assert code == 1
    flat = " ".join(out.split())
    assert "problem travel task.train.guard is a lock (lock), which cannot be sent to a rank; make it where" in flat
    assert max(map(len, out.splitlines())) <= 80


def test_losses_with_a_lambda_are_fine() -> None:
    assert checks(toy(loss=lambda output, target: F.cross_entropy(output, target)), ranks=2)["travel"]["status"] == "ok"
