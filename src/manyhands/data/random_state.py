"""The random generators that code of the user may draw from: Python's, numpy's and torch's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from .one_thread import alone


def seed_generators(value: int) -> None:
    """Set all three; any 64 bits will do."""
    random.seed(value)
    np.random.seed(value & 0xFFFF_FFFF)
    torch.default_generator.manual_seed(value & 0x7FFF_FFFF_FFFF_FFFF)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run under a seed and leave the caller's random state as it was."""
    with alone(), torch.random.fork_rng(devices=[]):
        python_state, numpy_state = random.getstate(), np.random.get_state()
        seed_generators(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def generators() -> dict[str, Any]:
    """Where the three stand."""
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def drawn_from(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Which of them were drawn from in between."""
    numpy_before, numpy_after = before["numpy"], after["numpy"]
    same = {
        "python": before["python"] == after["python"],
        "numpy": numpy_before[2] == numpy_after[2] and np.array_equal(numpy_before[1], numpy_after[1]),
        "torch": torch.equal(before["torch"], after["torch"]),
    }
    return {kind for kind, unchanged in same.items() if not unchanged}
