"""The collectives of sharded parameters: gathered whole before they are used, gradients summed into shards; counted and timed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...world.rank import Rank
from .worker import WrappedWorker

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Collective:
    def __init__(self, rank: Rank, worker: WrappedWorker | None = None):
        self.rank, self.worker = rank, worker

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    @contextmanager
    def measured(self, payload: Tensor) -> Iterator[None]:
        """On the CPU it is waited for here; on GPUs torch overlaps it itself."""
        clock = self.rank.clock
        clock.count(payload.nbytes)
        if self.rank.device.type != "cpu":
            yield
            return
        meeting, began = self.rank.arrive(), monotonic_ns()
        with clock.during("communication"):
            yield
            self.rank.split_wait(meeting, began)


class AllGather(_Collective):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        with self.measured(input_tensor):
            return _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


class ReduceScatter(_Collective):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        if self.worker is not None and self.worker.empty:
            input_tensor.zero_()
        with self.measured(input_tensor):
            return _reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
