"""The rank in waiting: used by a launch of one rank, sent away by any other, and never in anybody's way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from manyhands.world.launch import fork_server
from manyhands.world.launch.fork_server import shut_down, warm_up
from manyhands.world.launch.processes import LaunchedProcess, launch

SOON = 20.0  # seconds
NEW = ("colorsys", "sched")  # what no server has imported, one for each test that needs such a module
PRELOADED = ("pytest", "hypothesis", "manyhands.cli.app")  # by every launch of a test (conftest.py)


def who(process: LaunchedProcess) -> int:
    return os.getpid()


def found_here(process: LaunchedProcess) -> tuple[int, str | None, list[str]]:
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), [name for name in NEW if name in sys.modules]


@pytest.fixture(scope="module")
def shared() -> Iterator[psutil.Process]:
    """A server of these tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "_server", None)
        warm_up(PRELOADED)
        made = fork_server._server
        assert made is not None
        yield psutil.Process(made.process.pid)
        shut_down()


@pytest.fixture
def server(shared: psutil.Process) -> psutil.Process:
    """With a rank in waiting."""
    warm_up(PRELOADED, wait="cpu")
    return shared


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two
        return False


def in_waiting(server: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
    """The keeper and its rank, once they are there."""
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        keepers = [child for child in server.children() if lives(child)]
        with contextlib.suppress(psutil.NoSuchProcess):
            if len(keepers) == 1 and (ranks := keepers[0].children()):
                return keepers[0], ranks[0]
        time.sleep(0.01)
    raise AssertionError("no rank is in waiting")


def gone(*processes: psutil.Process) -> bool:
    until = time.monotonic() + SOON
    while any(map(lives, processes)):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_a_launch_of_one_rank_is_given_the_one_in_waiting(server: psutil.Process) -> None:
    keeper, rank = in_waiting(server)
    assert launch(who, 1) == [rank.pid]
    assert gone(keeper, rank)
    assert launch(who, 1) != [rank.pid]  # nobody waits now


def test_a_launch_of_two_ranks_sends_it_away(server: psutil.Process) -> None:
    keeper, rank = in_waiting(server)
    assert rank.pid not in launch(who, 2)
    assert gone(keeper, rank)


@pytest.mark.parametrize("victim", [0, 1], ids=["keeper", "rank"])
def test_a_launch_does_without_it_when_it_is_dead(server: psutil.Process, victim: int) -> None:
    """What begins a GPU may die of it; the launch must not."""
    keeper, rank = in_waiting(server)
    (keeper, rank)[victim].kill()
    assert gone((keeper, rank)[victim])
    (found,) = launch(who, 1)
    assert found not in (keeper.pid, rank.pid)
    assert gone(keeper, rank)


def test_one_that_lacks_what_was_imported_since_makes_room_for_another(server: psutil.Process) -> None:
    keeper, rank = in_waiting(server)
    warm_up([NEW[0]])
    assert gone(keeper, rank)
    _, second = in_waiting(server)
    assert launch(found_here, 1)[0][::2] == (second.pid, [NEW[0]])


def test_one_that_has_not_what_a_launch_preloads_is_not_used(server: psutil.Process) -> None:
    keeper, rank = in_waiting(server)
    found, _, imported = launch(found_here, 1, preload=[NEW[1]])[0]
    assert (found != rank.pid, NEW[1] in imported) == (True, True)
    assert gone(keeper, rank)


def test_a_gpu_that_was_begun_is_not_that_of_another_environment(
    server: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's file may choose its GPUs by CUDA_VISIBLE_DEVICES; a process that has begun one will not look again."""
    keeper, rank = in_waiting(server)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found, devices, _ = launch(found_here, 1)[0]
    assert (found != rank.pid, devices) == (True, "1")
    assert gone(keeper, rank)


def test_it_ends_with_its_server(server: psutil.Process) -> None:  # the last of them that needs it
    keeper, rank = in_waiting(server)
    server.send_signal(signal.SIGKILL)
    assert gone(keeper, rank)


def test_it_is_sent_away_when_nobody_asks_for_it() -> None:
    code = """
import os, socket, time
from manyhands.world.launch import rank_in_waiting as waiting
waiting.LONGEST = 0.2
ours, theirs = socket.socketpair()
room = waiting.WaitingRoom(lambda index, link, named: None, theirs)
room.prepare("cpu", stale=False)
began = time.monotonic()
room.empty_after_long()
assert 0.1 < time.monotonic() - began < 10
assert not room.take([], fits=True)
pid, status = os.wait()
assert status == 0, status
room.empty_after_long()  # returns at once: nobody waits
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
