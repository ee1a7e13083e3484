"""Shared by all tests: small tasks, and the check that nothing is left behind."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import hypothesis
import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.cli.app import main
from manyhands.studies import finding_data, findings
from manyhands.training.proof import find_weight, samples
from manyhands.world.launch import processes

ROOT = Path(__file__).parents[1]
# A shell starts what it puts into the background with Ctrl-C ignored, and processes inherit that: tests of Ctrl-C hung.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Made-up examples are the same in every run, and no slow machine fails them.
hypothesis.settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")
SAMPLES, BATCH = 1003, 30  # sizes that divide by nothing


class Skipping(nn.Module):
    """A small CNN with skip connections over one and two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.third = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        one = torch.relu(self.first(x))
        two = torch.relu(self.second(one)) + one
        three = torch.relu(self.third(two)) + one + two
        return self.head(three.flatten(1))


class Tied(nn.Module):
    """Two layers that use one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(12, 12)
        self.middle = nn.Linear(12, 12)
        self.again = nn.Linear(12, 12)
        self.again.weight = self.into.weight
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.into(x))
        x = torch.tanh(self.middle(x))
        return self.head(torch.tanh(self.again(x)))


class TakesDict(nn.Module):
    """A model whose input is a dict of tensors, one of them integers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.dense = nn.Linear(5, 6)
        self.mix = nn.Linear(12, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        joined = torch.cat([self.embed(x["kind"]), self.dense(x["values"])], dim=1)
        return self.head(torch.relu(self.mix(joined)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 3))


def _data(shape: tuple[int, ...], samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, *shape, generator=generator)
    score = x.flatten(1)[:, :3] + 0.3 * torch.randn(samples, 3, generator=generator)
    return x, score.argmax(1)


def _dict_data() -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(2)
    kind = torch.randint(7, (SAMPLES,), generator=generator)
    values, target = _data((5,))
    return {"kind": kind, "values": values}, (target + kind % 2) % 3


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "mlp": (mlp, lambda: _data((20,))),
    "skips": (Skipping, lambda: _data((1, 6, 6))),
    "tied": (Tied, lambda: _data((12,))),
    "dict": (TakesDict, _dict_data),
}


def make_task(kind: str = "mlp", **changes: Any) -> mh.Task:
    """A small classification task with awkward sizes."""
    model, data = MODELS[kind]
    made = data()
    fields: dict[str, Any] = {
        "model": model,
        "train": made,
        "test": made,
        "loss": nn.functional.cross_entropy,
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
        "batch_size": BATCH,
        "epochs": 3,
        "name": kind,
    }
    return mh.Task(**{**fields, **changes})


def quick_fit(task: mh.Task, strategy: Any = "single", **keywords: Any) -> mh.Run:
    return mh.fit(task, strategy, **{"progress": False, "device": "cpu", "threads": 1, **keywords})


def distance(one: mh.Run, other: mh.Run) -> float:
    """The largest difference between two runs' weights."""
    assert one.weights is not None
    assert other.weights is not None
    assert {name: value.shape for name, value in one.weights.items()} == {
        name: value.shape for name, value in other.weights.items()
    }
    return max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)


@contextmanager
def ends_soon() -> Iterator[None]:
    """What breaks a fit ends it at once. Ten times what start and end take on an idle machine are let pass:
    ranks that wait for one that is gone do so for minutes."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 60


@contextmanager
def pressed_once(file: str) -> Iterator[None]:
    """Ctrl-C for this process as soon as the file is there."""

    def press() -> None:
        while not over.wait(0.02):
            if Path(file).exists():
                os.kill(os.getpid(), signal.SIGINT)
                return

    over, finger = Event(), Thread(target=press)
    finger.start()
    try:
        yield
    finally:
        over.set()
        finger.join()


def rank_processes() -> list[int]:
    """Processes of launches that still live: everything below this program's fork server."""
    below = (process for server in fork_servers() for process in server.children(recursive=True))
    return [process.pid for process in below if _lives(process)]


def fork_servers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "manyhands.world.launch.fork_server_process" in " ".join(_words(child))]


def outlive(processes: list[psutil.Process], seconds: float = 20) -> list[psutil.Process]:
    """Those that still live so long after their end was due; on an idle machine they go within two seconds."""
    until = time.monotonic() + seconds
    while (living := [process for process in processes if _lives(process)]) and time.monotonic() < until:
        time.sleep(0.02)
    return living


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def shared_files() -> set[str]:
    """Of the kinds that we and torch make, without those of other programs that run: browsers and other people's tests
    come and go beside ours."""
    folder = Path("/dev/shm")
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return {name for name in names if name.startswith(("manyhands", "torch_")) and not _of_a_stranger(name)}


def _of_a_stranger(name: str) -> bool:
    """torch puts the process into the name."""
    made_by = re.match(r"torch_(\d+)_", name)
    if made_by is None or not psutil.pid_exists(int(made_by[1])):
        return False
    try:
        return os.getpid() not in {int(made_by[1]), *(one.pid for one in psutil.Process(int(made_by[1])).parents())}
    except psutil.Error:
        return False


def free_port() -> int:
    """Below those that the kernel gives to outgoing connections: nobody takes it between here and its use."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """The test must leave no process and no shared-memory file."""
    before = shared_files()
    yield
    until = time.monotonic() + 20
    while (rank_processes() or shared_files() - before) and time.monotonic() < until:
        time.sleep(0.02)  # other programs' files come and go
    assert rank_processes() == []
    assert shared_files() - before == set()


@pytest.fixture(scope="session", autouse=True)
def _what_tests_import_is_there() -> Iterator[None]:
    """Ranks import the modules their task comes from: the fork server imports what those need, once for all fits."""
    with importing("pytest", "hypothesis", "manyhands.cli.app"):
        yield


@contextmanager
def importing(*slow: str) -> Iterator[None]:
    """The fork server imports these modules, which ranks would import one by one, in every fit anew."""
    ask = processes.ask_for_ranks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "ask_for_ranks", lambda named, links, preload: ask(named, links, [*slow, *preload]))
        yield


@pytest.fixture(scope="session", autouse=True)
def _looks_take_their_time() -> Iterator[None]:
    """What is looked at for a fraction of a second is looked at to its end: what is found does not hang on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "READING_SECONDS", 10.0)
        patch.setattr(find_weight, "SLOW_SECONDS", 60.0)
        for name in ("READ_SECONDS", "ROW_SECONDS"):
            patch.setattr(finding_data, name, 30.0)
        for name in ("WALK_SECONDS", "SECONDS", "SLOW"):
            patch.setattr(findings, name, 30.0)
        yield


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    """What a test draws does not depend on the tests before it. No small number: those are seeds of generators in tests."""
    torch.manual_seed(987_654)
    np.random.seed(987_654)
    random.seed(987_654)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Of torch, in the tests' own process: a second one only spins while the ranks need the core. Ranks have their own number."""
    torch.set_num_threads(1)


@pytest.fixture
def two_threads() -> None:
    torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write their runs into the test's own folder."""
    monkeypatch.chdir(tmp_path)
    os.environ.pop("RANK", None)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process: exit code, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        handler = signal.getsignal(signal.SIGTERM)
        monkeypatch.setattr(sys, "argv", ["manyhands", *words])
        try:
            with pytest.raises(SystemExit) as leaving:
                main()
        finally:
            signal.signal(signal.SIGTERM, handler)
        out, err = capfd.readouterr()
        return int(leaving.value.code or 0), out, err

    return run
