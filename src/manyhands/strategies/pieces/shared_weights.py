"""Weights that several processes read and write in place: the piece under `locked` and `hogwild`.

    shared = SharedModel(Net(), ranks=2)              parameters in shared memory, counters beside them
    model = shared.attach(rank)                       in each process: parameters ARE the shared tensors
    shared.read();  ...gradient, update...;  shared.wrote()     the number of others' updates in between

Buffers (BatchNorm's statistics) are not shared: every process has its own, and `batchnorm.average_buffers` joins them.
On another device than the CPU a process keeps a copy of the weights that `read` refreshes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..job import trained_parameters

LINE = 8  # numbers of 8 bytes in a cache line: two processes never write the same one


def shared_tensors(model: nn.Module, ranks: int) -> dict[str, Tensor]:
    """What must lie in memory that all processes see."""
    tensors = {f"weights/{name}": parameter.detach().to("cpu") for name, parameter in trained_parameters(model)}
    tensors["updates"] = torch.zeros(ranks, LINE, dtype=torch.int64)
    tensors["computing"] = torch.zeros(ranks, LINE, dtype=torch.int64)  # nanoseconds
    return tensors


class SharedModel:
    """A model whose trained parameters live in memory that several processes read and write in place.

    Made before the processes start, it travels to them through `torch.multiprocessing`; `tensors` may be
    given instead where they are shared already. `staleness` is the histogram of this process's updates:
    entry k counts those that k updates of others came between reading and writing.
    """

    def __init__(self, model: nn.Module, ranks: int, tensors: Mapping[str, Tensor] | None = None):
        if tensors is None:
            tensors = {name: value.clone().share_memory_() for name, value in shared_tensors(model, ranks).items()}
        self.model, self.ranks, self.tensors = model, ranks, dict(tensors)
        self.staleness: list[int] = []
        self._adopt(torch.device("cpu"))

    def _adopt(self, device: torch.device) -> None:
        trained = trained_parameters(self.model)
        if device.type == "cpu":
            for name, parameter in trained:
                parameter.data = self.tensors[f"weights/{name}"]
            self.home = dict(trained)
        else:
            self.home = {name: nn.Parameter(self.tensors[f"weights/{name}"]) for name, _ in trained}
            self.model.to(device)
        self._mirror: list[Tensor] = [parameter for _, parameter in trained] if device.type != "cpu" else []

    def attach(self, rank: int, device: torch.device | None = None) -> nn.Module:
        """Call it in the process of `rank`: the model with shared parameters and buffers of its own."""
        self.rank = rank
        self._counts: Any = self.tensors["updates"].numpy()[:, 0]
        for buffer in self.model.buffers():
            buffer.data = buffer.data.clone()
        self._adopt(device or torch.device("cpu"))
        self.read()
        return self.model

    @property
    def updates(self) -> int:
        """Updates of all processes so far."""
        return int(self.tensors["updates"][:, 0].sum())

    def _others(self) -> int:
        return int(self._counts.sum() - self._counts[self.rank])

    def read(self) -> int:
        """From here on the weights are read; returns the bytes that had to be copied (none on the CPU)."""
        self._seen = self._others()
        if not self._mirror:
            return 0
        with torch.no_grad():
            for copied, value in zip(self._mirror, self.home.values(), strict=True):
                copied.copy_(value)
        return sum(value.nbytes for value in self._mirror)

    def hand_over(self) -> int:
        """Gradients of a model on another device go to the shared parameters; returns the bytes copied."""
        total = 0
        for parameter, home in zip(self._mirror, self.home.values(), strict=False):
            home.grad = None if parameter.grad is None else parameter.grad.to("cpu")
            total += 0 if home.grad is None else home.nbytes
            parameter.grad = None
        return total

    def wrote(self) -> int:
        """An update was written; returns how many of others came between `read` and now."""
        late = self._others() - self._seen
        self._counts[self.rank] += 1
        self.staleness.extend([0] * (late + 1 - len(self.staleness)))
        self.staleness[late] += 1
        return late
