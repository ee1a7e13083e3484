"""Weights that several processes read and write in place: the piece under `locked` and `hogwild`.

    shared = SharedModel(Net(), ranks=2)              parameters in shared memory, counters beside them
    model = shared.attach(rank)                       in each process: parameters ARE the shared tensors
    shared.read();  ...gradient, update...;  shared.wrote()     the number of others' updates in between

Buffers (BatchNorm's statistics) are not shared: every process has its own, and `average_buffers` joins them.
On another device than the CPU a process keeps a copy of the weights that `read` refreshes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...data.batches import Batch
from ...errors import BadInput
from ...record.run import PHASES
from ...world.rank import Rank
from ..contract import Loss, Strategy, Worker, refuse
from ..job import Job, trained_parameters
from .foreach import copy_all
from .rank_model import full_weights
from .updater import Updater
from .worker import OrdinaryWorker

LINE = 8  # numbers of 8 bytes in a cache line: two processes never write the same one
COMPUTING = [PHASES.index(name) for name in ("forward", "backward", "update")]


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
            copy_all(self._mirror, [*self.home.values()])
        return sum(value.numel() * value.element_size() for value in self._mirror)

    def hand_over(self) -> int:
        """Gradients of a model on another device go to the shared parameters; returns the bytes copied."""
        total = 0
        for parameter, home in zip(self._mirror, self.home.values(), strict=False):
            home.grad = None if parameter.grad is None else parameter.grad.to("cpu")
            total += 0 if home.grad is None else home.numel() * home.element_size()
            parameter.grad = None
        return total

    def wrote(self) -> int:
        """An update was written; returns how many of others came between `read` and now."""
        late = self._others() - self._seen
        self._counts[self.rank] += 1
        self.staleness.extend([0] * (late + 1 - len(self.staleness)))
        self.staleness[late] += 1
        return late


def average_buffers(rank: Rank, model: nn.Module) -> dict[str, Tensor]:
    """BatchNorm's statistics, the mean over ranks (counters: the largest), on rank 0; every process takes part."""
    trained = dict(model.named_parameters(remove_duplicate=False))
    mine = {name: value.detach().cpu() for name, value in model.state_dict().items() if name not in trained}
    everyone = rank.gather(None if rank.serves else mine)
    if everyone is None:
        return {}
    known = [item for item in everyone if item is not None]
    return {name: _joined([item[name] for item in known]) for name in mine}


def _joined(values: list[Tensor]) -> Tensor:
    stacked = torch.stack(values)
    if not values[0].is_floating_point():
        return stacked.amax(0) if values[0].dtype != torch.bool else values[0]
    return stacked.double().mean(0).to(values[0].dtype)


def check_choices(strategy: Strategy, **choices: tuple[str, ...]) -> None:
    """Options that are one of a few words, and the number of ranks."""
    for key, known in choices.items():
        value = getattr(strategy, key)
        if value not in known:
            raise BadInput(f'{strategy.name}:{key} must be one of {", ".join(known)} (found "{value}")')
    if strategy.ranks < 1:
        raise BadInput(f"{strategy.name} needs at least 1 rank (found {strategy.ranks})")


# ---------------------------------------------------------------- optimizer state that all ranks share


def optimizer_tensors(job: Job, strategy: Strategy) -> dict[str, Tensor]:
    """The optimizer's state as it is before the first update, found by one update of zeros with zeros."""
    named = [(name, nn.Parameter(torch.zeros_like(p, device="cpu"))) for name, p in trained_parameters(job.model)]
    optimizer = job.task.optimizer(named)
    before = {name: set(optimizer.state.get(parameter, {})) for name, parameter in named}
    for _, parameter in named:
        parameter.grad = torch.zeros_like(parameter)
    kind = type(optimizer).__name__
    try:
        optimizer.step()
    except Exception as problem:
        raise refuse(strategy, f"cannot share the state of {kind} ({problem}); use optimizer=rank") from problem
    shared = {}
    for name, parameter in named:
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                if value is None:
                    continue
                raise refuse(strategy, f"cannot share the state of {kind} ({key} is no tensor); use optimizer=rank")
            if key == "step":
                value = torch.zeros_like(value)
            elif key not in before[name] and bool(value.count_nonzero()):
                raise refuse(
                    strategy, f"cannot share the state of {kind} ({key} does not start at zero); use optimizer=rank"
                )
            shared[f"state/{key}/{name}"] = value
    return shared


def share_state(updater: Updater, shared: Mapping[str, Tensor]) -> None:
    """Let an optimizer work on shared state."""
    held = dict(updater.named)
    for label, tensor in shared.items():
        kind, _, rest = label.partition("/")
        if kind == "state":
            key, _, name = rest.partition("/")
            updater.optimizer.state[held[name]][key] = tensor


# ---------------------------------------------------------------- the worker


class SharedWorker(OrdinaryWorker):
    """Reads shared weights, computes a gradient, writes its update into them; who writes when is the strategy's."""

    not_captured = Worker.not_captured

    def __init__(self, job: Job, rank: Rank, scale: str = "global"):
        assert rank.shared is not None
        self.shared = SharedModel(job.model, rank.ranks, rank.shared)
        model = self.shared.attach(rank.index, rank.device).train()
        super().__init__(job, rank, model, model, trained=self.shared.home.items())
        share_state(self.updater, rank.shared)
        self._scale, self._clip = scale, job.settings.clip
        self._group = 0  # samples of this rank in the update that is being accumulated
        self._finite = True  # the losses behind the gradient that is being accumulated
        self._computing: Any = rank.shared["computing"].numpy()[:, 0]

    def read(self) -> None:
        """The weights of a new update are read from here on."""
        if self._group == 0:
            with self.clock.during("communication"):
                self.clock.count(self.shared.read())

    def gradient(self, batch: Batch) -> Loss:
        """Add this shard's gradient to the accumulated one; an empty shard adds nothing."""
        self._group += batch.count
        if batch.count == 0:
            return Loss(0.0, 0)
        loss = self.add_gradient(batch).detach()
        if loss.device.type == "cpu" and not math.isfinite(loss.item()):
            self._finite = False
        return Loss(loss, batch.count)

    def write(self, batch: Batch) -> None:
        """One update with this rank's gradient alone."""
        share = self._group / batch.step.group_total
        self._group = 0
        if share == 0:
            self.updater.skip()
            return
        if not self._finite:
            return  # this rank ends the run now; others must not find it in their weights first and take the blame
        self.clock.count(self.shared.hand_over())
        if self._scale == "shard":
            gradients = [home.grad for home in self.shared.home.values() if home.grad is not None]
            for gradient in gradients:
                gradient.mul_(1 / share)
            share = 1.0
        if self._clip is not None:
            self.updater.clip = self._clip * share  # the limit is for the mean over samples
        self.clock.enter("update")
        self.updater.update(advance=batch.own)
        self.shared.wrote()
        self.clock.enter("other")
        self._computing[self.rank.index] = sum(self.clock.phases[number] for number in COMPUTING)

    def weights(self) -> dict[str, Tensor] | None:
        self.shared.read()
        found = full_weights(self.plain) if self.rank.leads else None
        if self.job.has_batchnorm:
            averaged = average_buffers(self.rank, self.plain)
            return None if found is None else {**found, **averaged}
        return found

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.plain.load_state_dict(dict(weights))
        for name, home in self.shared.home.items():
            home.copy_(weights[name])
        self.updater.load(state)
        self._share_loaded_state()

    def _share_loaded_state(self) -> None:
        """Loading made new state tensors; their values go into the shared ones."""
        assert self.rank.shared is not None
        held = dict(self.updater.named)
        for label, tensor in self.rank.shared.items():
            if label.startswith("state/"):
                key, _, name = label.removeprefix("state/").partition("/")
                loaded = self.updater.optimizer.state[held[name]].get(key)
                if isinstance(loaded, Tensor):
                    tensor.copy_(loaded)
        share_state(self.updater, self.rank.shared)

    def overlap(self) -> float | None:
        """How many ranks computed at the same time, on average (after a barrier)."""
        elapsed = sum(self.clock.phases)
        return float(self._computing.sum()) / elapsed if elapsed else None

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {"staleness": self.shared.staleness, "notes": []}
        if self.rank.leads:
            number = self.overlap()
            if number is not None:
                found["notes"].append(
                    f"overlap: on average {number:.2f} of {self.rank.ranks} ranks computed at the same time"
                )
            if self.job.has_batchnorm:
                found["notes"].append("BatchNorm statistics are kept by each rank and averaged where weights are taken")
        return found
