"""What the whole process shares, used by one thread at a time, so that fits may run in several: `alone` and `seeded`.

The random generators, torch's number of threads, the functions of torch that are patched while a model is traced
and the table of modules are the process's. Whoever sets them for a moment, or depends on them, does so `alone`:
building a job under its seed, tracing, opening a task file, packing and opening what travels to other processes
(functions travel by name, and a patched one must not be met).
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_turn = threading.RLock()  # what runs alone may call what runs alone


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other thread of this process is in here."""
    with _turn:
        yield


def _forked() -> None:
    global _turn
    _turn = threading.RLock()  # the thread that held it may not exist in this child


os.register_at_fork(after_in_child=_forked)


def seed_generators(value: int) -> None:
    """Set the generators code of the user may draw from, Python's, numpy's and torch's; any 64 bits will do."""
    random.seed(value)
    np.random.seed(value & 0xFFFF_FFFF)
    torch.default_generator.manual_seed(value & 0x7FFF_FFFF_FFFF_FFFF)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run under a seed and leave the caller's random state as it was."""
    with alone(), torch.random.fork_rng(devices=[]), python_generators_kept():
        seed_generators(seed)
        yield


@contextmanager
def python_generators_kept() -> Iterator[None]:
    """Python's and numpy's generators stand afterwards where they stood before."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def generators() -> dict[str, Any]:
    """Where the three stand, as values that can be compared."""
    numpys: Any = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (numpys[1].tobytes(), *numpys[2:]),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def drawn_from(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Which of them were drawn from in between."""
    return {kind for kind in before if before[kind] != after[kind]}
