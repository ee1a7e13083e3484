"""What others use of the machine is told from what we and all our processes use."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from manyhands.record import neighbours as module
from manyhands.record.cores import Cores
from manyhands.record.neighbours import Neighbours
from manyhands.world.launch.together import together


def test_before_it_has_begun_nothing_is_known() -> None:
    assert Neighbours().cores_of_others() is None
    assert Neighbours().cores_taken() is None


def test_others_are_what_we_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([(10.0, 100.0, 7.0), (12.0, 103.0, 8.0), (14.0, 104.0, 12.0)])
    monkeypatch.setattr(module, "_now", lambda: next(moments))
    watch = Neighbours()
    watch.begin()
    assert watch.cores_of_others() == 1.0
    assert watch.cores_of_others() == 0.0  # ticks of two clocks may differ: never less than nobody


@pytest.mark.parametrize(("affinity", "count", "share"), [(2, 2, 0.5), (64, 2, 0.0), (2, 1, 0.0), (1, 1, 1.0)])
def test_others_first_use_what_we_may_not(
    affinity: int, count: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Neighbours, "cores_of_others", lambda _: 1.0)
    monkeypatch.setattr(module, "usable_cores", lambda: Cores(count, 64, affinity, None, None))
    assert Neighbours().share_taken() == share
    assert Neighbours().cores_taken() == share * count


def _ours() -> float:
    moment = module._now()
    assert moment is not None
    return moment[2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_time_of_children_that_have_ended_is_ours() -> None:
    before = _ours()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert _ours() - before >= 0.25


def _burn(_: object) -> None:
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_time_of_ranks_that_have_ended_is_ours() -> None:
    """The fork server once ignored the ends of its children: the kernel forgot their time, and our ranks were neighbours."""
    before = _ours()
    together(_burn, 2)
    end = time.monotonic() + 30
    while _ours() - before < 0.7 and time.monotonic() < end:
        time.sleep(0.01)  # until they have been waited for
    assert _ours() - before >= 0.7
