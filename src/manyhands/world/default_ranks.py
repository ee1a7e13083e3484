"""How many ranks when nobody says: one a GPU, else one a core, at least two."""

from __future__ import annotations

import torch

from ..record.run import available_cores


def default_ranks() -> int:
    return max(2, torch.cuda.device_count() or available_cores())
