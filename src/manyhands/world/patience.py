"""Waiting for another process through shared memory: cheap, bounded, and with a name for whoever does not come.

A waiting process looks a few times, then sleeps; the sleeps grow with the time already waited (one part in
twenty), so that a long wait costs its core almost nothing and a short one is noticed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

LOOKS = 50  # about 20 microseconds
SHORTEST, LONGEST = 30e-6, 1e-3  # seconds of one sleep
SHARE = 0.05
PATIENCE = 600.0  # seconds; the dead are noticed much sooner, by the launcher


def wait_until(ready: Callable[[], bool], lack: Callable[[], str], patience: float = PATIENCE) -> None:
    """Return as soon as `ready()`; after `patience` seconds raise, with `lack()` saying who is missing."""
    for _ in range(LOOKS):
        if ready():
            return
    began = monotonic()
    while not ready():
        waited = monotonic() - began
        if waited > patience:
            raise TimeoutError(f"{lack()} (waited {waited:.0f} s)")
        sleep(min(max(SHORTEST, SHARE * waited), LONGEST))
