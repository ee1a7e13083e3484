"""The random generators that code of the user may draw from: Python's, numpy's and torch's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ..alone import alone


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
