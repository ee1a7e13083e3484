"""What other processes do to this machine: its busy time less that of our own process and all it has started."""

from __future__ import annotations

import os
import sys
import time

from .cores import usable_cores

BUSY = 0.15  # of the cores, used by others: more, and measurements mean little


class Neighbours:
    """Call `begin`, do something, and ask. Ticks of the kernel are 10 ms: look over a few tenths of a second at least."""

    def __init__(self) -> None:
        self._begun: tuple[float, float, float] | None = None

    def begin(self) -> None:
        self._begun = _now()

    def cores_of_others(self) -> float | None:
        """Cores' worth of time others have used since `begin`, of those we may run on; None where that cannot be known."""
        now = _now()
        if self._begun is None or now is None or now[0] <= self._begun[0]:
            return None
        seconds, busy, ours = (end - start for end, start in zip(now, self._begun, strict=True))
        return max(0.0, (busy - ours) / seconds)

    def share_taken(self) -> float | None:
        """How much of the cores we may use others take, 0 to 1: on a larger machine they first use those we may not."""
        others = self.cores_of_others()
        if others is None:
            return None
        cores = usable_cores()
        return min(1.0, max(0.0, others - (cores.affinity - cores.count)) / cores.count)

    def cores_taken(self) -> float | None:
        """How many of the cores we may use others take."""
        share = self.share_taken()
        return None if share is None else share * usable_cores().count


def _now() -> tuple[float, float, float] | None:
    """(clock, seconds our cores have been busy, seconds of our own process tree)."""
    if not sys.platform.startswith("linux"):
        return None  # elsewhere the time of children that have ended is not told
    import psutil

    try:
        allowed = os.sched_getaffinity(0)
        times = psutil.cpu_times(percpu=True)
        # Stolen time was taken by another machine on the same host: a neighbour all the same.
        busy = sum(
            time_.user + time_.nice + time_.system + time_.irq + time_.softirq + time_.steal
            for core, time_ in enumerate(times)
            if core in allowed or len(times) <= len(allowed)
        )
        own = psutil.Process()
        return time.monotonic(), busy, sum(_used(process) for process in (own, *own.children(recursive=True)))
    except (OSError, psutil.Error):
        return None


def _used(process: object) -> float:
    """A process's time with that of the children it has waited for."""
    import psutil

    try:
        times = process.cpu_times()  # type: ignore[attr-defined]
    except psutil.Error:  # it has just ended: its parent has its time now, or will next time
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
