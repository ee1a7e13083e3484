"""The keeper of a launch: nothing outlives its caller, and its own death ends the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

import manyhands as mh
from manyhands.errors import RankFailed
from tests.breakable import BreakingLoss, toy
from tests.conftest import ROOT, ends_soon, outlive

fit = partial(mh.fit, progress=False, threads=1)

ORPHANS = """
import sys, time
sys.path[:0] = [{root!r}]
import manyhands as mh
from tests.breakable import BreakingLoss, sleep_forever, toy
mh.fit(toy(loss=BreakingLoss(sleep_forever, call=3)), "ddp", ranks=2, threads=1, progress=False)
"""


@pytest.mark.soak
def test_orphans_of_a_killed_caller_end_themselves() -> None:
    """Kill -9 of the caller: nothing goes on."""
    code = ORPHANS.format(root=str(ROOT))
    caller = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        ranks = _ranks_of(caller.pid)
        assert len(ranks) == 2
        time.sleep(0.5)
        below = psutil.Process(caller.pid).children(recursive=True)  # server and keeper too
        os.kill(caller.pid, signal.SIGKILL)
        assert outlive(below) == []
    finally:
        caller.kill()
        caller.wait()


def kill_keeper() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@pytest.mark.usefixtures("nothing_left")
def test_when_the_keeper_of_the_ranks_is_killed_the_run_ends() -> None:
    with ends_soon(), pytest.raises(RankFailed, match=r"rank \d of 2 died in step 3"):
        fit(toy(loss=BreakingLoss(kill_keeper, call=3)), "ddp", ranks=2)


def _ranks_of(caller: int) -> list[psutil.Process]:
    """The ranks of a program once they train: children of the keeper, which is a child of the fork server."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for server in psutil.Process(caller).children():
            for keeper in server.children():
                ranks = keeper.children()
                if len(ranks) == 2:
                    return ranks
        time.sleep(0.1)
    return []
