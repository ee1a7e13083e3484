"""What the cores did for a rank: CPU time by phase, time it was ready without a core, and context switches.

CPU time beside wall time tells work (about 1 per thread), sleep (about 0) and stolen cores (between, on all ranks) apart.
A look costs a microsecond or two, so only some shares are watched; each stands for as many as lie between two of them.

    watch.begin()                    a share that is watched begins
    watch.look(phase, wall, share)   a phase ends: `share` of what happened since the last look belongs to it
    watch.end(8)                     the share is over, and stands for 8
"""

from __future__ import annotations

import os
import resource
from time import process_time_ns

from .run import PHASES

_IDLE = (PHASES.index("communication"), PHASES.index("wait"))


class CoreTime:
    """How long the thread that makes it was ready to run while something else ran on its core, which Linux tells.

    A look costs about a microsecond.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def nanoseconds_without(self) -> int:
        """Since the thread began; always 0 where nobody knows."""
        try:  # the file has three numbers: CPU time, time ready to run without a core, turns
            return int(os.pread(self._file, 80, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class CoreWatch:
    """Nanoseconds of CPU time (of all threads of this process) and of wall time in each phase, in watched shares."""

    def __init__(self) -> None:
        self._core = CoreTime()
        self._cpu = [0] * len(PHASES)  # weighted by what each share stands for
        self._wall = [0] * len(PHASES)
        self._share: list[tuple[int, int, int]] = []  # (phase, CPU, wall) of the share that is watched now
        self._without = self._used = 0  # at the last look
        self._stolen = 0  # time without a core in phases of work, in the share that is watched now

    def begin(self) -> None:
        self._without, self._used = self._core.nanoseconds_without(), process_time_ns()

    def look(self, phase: int, wall: int, share: float) -> None:
        """A phase has ended after `wall` nanoseconds; this share of what happened since the last look was in it."""
        taken = round((self._core.nanoseconds_without() - self._without) * share)
        used = round((process_time_ns() - self._used) * share)
        self._without += taken
        self._used += used
        self._share.append((phase, used, wall))
        if phase not in _IDLE:
            self._stolen += taken

    def end(self, stands_for: int = 1) -> int:
        """Book the share; returns the nanoseconds without a core in its phases of work."""
        for phase, used, wall in self._share:
            self._cpu[phase] += used * stands_for
            self._wall[phase] += wall * stands_for
        found, self._stolen, self._share = self._stolen, 0, []
        return found

    def cpu_per_wall(self) -> list[float | None]:
        """CPU time per wall time in each phase; above 1 where several threads work, None where none was watched."""
        return [used / wall if wall else None for used, wall in zip(self._cpu, self._wall, strict=True)]


def switches() -> tuple[int, int]:
    """Context switches of this process so far: it gave its core away (to wait, mostly), and it was made to."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nvcsw, usage.ru_nivcsw
