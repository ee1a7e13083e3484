"""PowerSGD: sums of gradients by their low-rank factors, with what that leaves out kept for the next update.

    update < START    gradients are summed as they are
    then, per matrix  M = gradient + error     P = M Q, summed, orthogonal     Q = M' P, summed     sum ~ P Q'
                      error = M - P Q'/n       kept by every rank, added to its next gradient

    a matrix of r x c costs RANK (r + c) numbers instead of r c; vectors, and matrices it would not make smaller, go whole

The arithmetic is torch's hook (Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression", NeurIPS 2019). It
averages over ranks, where our gradients are shares of a sum: the average times the number of ranks is the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs
from torch.futures import Future

RANK = 2  # of the approximation
START = 10  # updates that are summed whole: the first gradients are the largest, and there is no memory of errors yet
TINY = 1e-8  # what a column of zeros is divided by
MEMORIES = {"error": "error_dict", "p": "p_memory_dict", "q": "q_memory_dict"}  # ours: torch's, by bucket


class _WithoutGpus:
    """torch as its hook may see it for gradients on the CPU: it would wait for a GPU and name the CPU as the one."""

    cuda = SimpleNamespace(is_available=lambda: False)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class PowerSums:
    """torch's hook with its state. All ranks must begin the sums of a bucket in the same order."""

    def __init__(self, ranks: int, device: torch.device):
        self.ranks = ranks
        if device.type == "cpu":
            torchs.torch = _WithoutGpus()  # type: ignore[assignment, attr-defined]
        self._state = torchs.PowerSGDState(
            None, matrix_approximation_rank=RANK, start_powerSGD_iter=START, orthogonalization_epsilon=TINY
        )

    def sum(self, bucket: dist.GradBucket) -> tuple[Future[Tensor], int]:
        """The sum to come, and the bytes this rank hands over for it."""
        state, buffer = self._state, bucket.buffer()
        compressed, before = state.iter >= START, state.total_numel_after_compression
        averaged = torchs.powerSGD_hook(state, bucket)
        numbers = state.total_numel_after_compression - before if compressed else buffer.numel()

        def summed(future: Future[Tensor]) -> Tensor:
            return future.value().mul_(self.ranks)

        return averaged.then(summed), numbers * buffer.element_size()

    def memory(self) -> dict[str, Any]:
        """What this rank must know to go on as if nothing had happened."""
        kept = {name: getattr(self._state, its) for name, its in MEMORIES.items()}
        cells = {name: {str(key): value.cpu() for key, value in cells.items()} for name, cells in kept.items()}
        return {"updates": self._state.iter, **cells}

    def load(self, memory: Mapping[str, Any], device: torch.device) -> None:
        self._state.iter = memory["updates"]
        for name, its in MEMORIES.items():
            setattr(self._state, its, {int(key): value.to(device).clone() for key, value in memory[name].items()})
