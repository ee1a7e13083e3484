"""Sends under way: torch.distributed wants what they carry kept in hand until they have left."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


class Sends:
    """Sends that nobody waits for until `drain`."""

    def __init__(self) -> None:
        self._under_way: list[tuple[dist.Work | None, Tensor]] = []

    def send(self, tensor: Tensor, to: int, tag: int = 0) -> None:
        work = dist.isend(tensor, dst=to, tag=tag)
        self._under_way = [(other, kept) for other, kept in self._under_way if other and not other.is_completed()]
        self._under_way.append((work, tensor))

    def drain(self) -> None:
        """Wait until everything has left."""
        for work, _ in self._under_way:
            if work is not None:
                work.wait()
        self._under_way.clear()
