"""Waiting for another process through shared memory: cheap, bounded, and with a name for whoever does not come.

A waiting process looks a few times and then sleeps; where what it waits for is a matter of a moment, it first gives its
core away at every look for that long, which spares it the way out of sleep. With a bell it sleeps in the kernel until
another process rings (a futex on a word of shared memory), so that it takes nothing from the cores the others compute
on. Without one, or where there are no futexes, it looks again after sleeps that grow with the time already waited.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from time import monotonic, monotonic_ns, sleep

from torch import Tensor

from ...errors import PeerMissing

LOOKS = 5
SHORTEST, LONGEST, SHARE = 30e-6, 1e-3, 0.05  # seconds of one sleep, as a share of the time waited so far
MOMENT = 3e-3  # seconds to stay awake, giving the core away, where the wait should be short
PATIENCE = 600.0  # seconds; the dead are noticed much sooner, by the launcher
AT_LEAST = 0.05  # seconds after which even a sleeper with a bell looks up

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT, _WAKE, _EVERYBODY = 0, 1, 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


_syscall = ctypes.CDLL(None, use_errno=True).syscall if _FUTEX else None
_timeout = _Timespec(0, int(AT_LEAST * 1e9))


class Bell:
    """A word of shared memory that processes ring and sleep on; `cell` is 8 bytes all of them see."""

    def __init__(self, cell: Tensor):
        self._word = ctypes.c_int32.from_address(cell.data_ptr())
        self._cell = cell  # keeps the memory

    @property
    def word(self) -> int:
        return self._word.value

    def ring(self) -> None:
        """Wake those who sleep; whatever they wait for must be written before."""
        self._word.value = monotonic_ns() & 0x7FFF_FFFF  # a value nobody has seen, without a lock between ringers
        if _syscall is not None:
            _syscall(_FUTEX, ctypes.byref(self._word), _WAKE, _EVERYBODY, None, None, 0)

    def sleep(self, seen: int, otherwise: float) -> None:
        """Until the bell has been rung since `word` was `seen`, or a moment has passed."""
        if _syscall is None:
            sleep(otherwise)
        else:
            _syscall(_FUTEX, ctypes.byref(self._word), _WAIT, seen, ctypes.byref(_timeout), None, 0)


def wait_until(
    ready: Callable[[], bool],
    lack: Callable[[], str],
    patience: float = PATIENCE,
    bell: Bell | None = None,
    awake: float = 0.0,
) -> None:
    """Return as soon as `ready()`; after `patience` seconds raise, with `lack()` saying who is missing."""
    for _ in range(LOOKS):
        if ready():
            return
    began = monotonic()
    while monotonic() - began < awake:
        os.sched_yield()
        if ready():
            return
    while True:
        seen = bell.word if bell else 0
        if ready():
            return
        waited = monotonic() - began
        if waited > patience:
            raise PeerMissing(f"{lack()} (waited {waited:.0f} s)", kind="stalled")
        pause = min(max(SHORTEST, SHARE * waited), LONGEST)
        if bell:
            bell.sleep(seen, pause)
        else:
            sleep(pause)
