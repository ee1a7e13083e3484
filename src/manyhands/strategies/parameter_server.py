"""Parameter server: servers own slices of the weights and update them; ranks push gradients and pull weights.

    rank 0     forward backward push ....====== pull | forward backward push ...     . waiting for others (phase `wait`)
    rank 1     forward backward     push ====== pull |                               = a server at work (phase `update`)
    server 0   ................ take take update     |     its slice of every gradient, its slice of the weights
    server 1   ................ take take update     |

    sync       a server sums the gradients of all ranks in rank order and makes one update a step
    async      a server updates with every gradient as it comes and answers at once; nobody waits for other ranks,
               and on one host a rank that is done with an epoch makes the last shares of those behind
    bounded    as async, but a rank more than `staleness` steps ahead of the slowest gets its answer later
    slices     all rows in one line, cut into `servers` equal lengths by bytes; the optimizer runs on each slice

Cost per update, with P bytes of trained parameters and n ranks: ranks push n * P bytes and pull n * P, in all 2 * n *
P (a sparse gradient travels as its rows, of row bytes + 8 each; weights are pulled whole). Held: a server P / servers
of weights and optimizer state; a rank weights, gradients and activations of its shard; in shared memory n gradients.
There backward adds up gradients where the servers read them, and with mode=sync ranks on the CPU compute on the
servers' weights themselves: the bytes change hands without being copied. Exact with mode=sync: sums in rank order,
one update a step. async and bounded are not: n updates a step, each with a gradient of older weights; optimizers that
normalise the gradient (Adam) move up to n times as far.
Papers: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014; Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data.batches import Batch
from ..errors import BadInput
from ..world.devices import default_ranks
from ..world.rank import Rank
from .contract import Loss, Strategy, Traits, Worker, refuse
from .job import Job, trained_parameters
from .pieces.batchnorm import average_buffers, average_notes
from .pieces.gradients_in_place import GradientsInPlace
from .pieces.optimizer_state import join_states
from .pieces.parameter_slices import Slice, assign_slices
from .pieces.rank_model import full_weights, place_model
from .pieces.refusals import check_choices, check_unwritten
from .pieces.server import Server
from .pieces.server_memory import MemoryClientEnd, message_tensors
from .pieces.server_messages import END, PASS, PUSH
from .pieces.server_network import NetworkClientEnd
from .pieces.timelines import served
from .pieces.units import Units
from .pieces.worker import OrdinaryWorker

OLDER = "every rank's gradient is an update by itself, made from older weights"
EXACT: dict[str, bool | str] = {"sync": True, "async": OLDER, "bounded": OLDER}


@dataclass(frozen=True)
class ParameterServer(Strategy):
    """Ranks compute gradients, servers hold and update the weights.

    Args:
        ranks: how many processes train; by default one per GPU, else one per core, at least 2
        servers: how many processes hold and update the weights, besides the ranks
        mode: when a server updates: `sync` once per step with all ranks' gradients, as single would; `async` with every
            gradient as it comes; `bounded` as async, but no rank is more than `staleness` steps ahead
        staleness: with `bounded`: how many steps a rank may be ahead of the slowest
        over: what carries the messages: `memory` on one host, `network` on any; `auto` chooses
        split: cut large tensors between servers; `no` keeps each of them whole
        scale: with `async` and `bounded`, what a rank divides its gradient by: samples of the `global` batch or its `shard`
        partition: with `async` and `bounded`, what a rank reads: a part of every `batch`, or a `fixed` part of the data

    Example:
        manyhands train glyphs parameter_server:servers=2,mode=async --ranks 2
    """

    ranks: int = field(default_factory=partial(default_ranks, beside=1))
    servers: int = 1
    mode: str = "sync"
    staleness: int = 4
    over: str = "auto"
    split: bool = True
    scale: str = "global"
    partition: str = "batch"

    name = "parameter_server"
    summary = "servers own slices of the weights, ranks push gradients and pull weights"

    def __post_init__(self) -> None:
        check_choices(
            self,
            mode=tuple(EXACT),
            over=("auto", "memory", "network"),
            scale=("global", "shard"),
            partition=("batch", "fixed"),
        )
        if self.servers < 1:
            raise BadInput(f"parameter_server needs at least 1 server (found servers={self.servers})")
        if self.staleness < 0:
            raise BadInput(f"parameter_server:staleness must be 0 or more (found {self.staleness})")
        if "staleness" in self.options and self.mode != "bounded":
            raise BadInput(f"{self}: staleness needs mode=bounded; write mode=bounded,staleness={self.staleness}")
        if self.mode == "sync" and {"scale", "partition"} & set(self.options):
            raise BadInput(
                f"{self}: mode=sync makes the updates of single; scale and partition need mode=async or mode=bounded"
            )

    @property
    def traits(self) -> Traits:
        sync = self.mode == "sync"
        return Traits(
            exact=EXACT[self.mode],
            processes=self.ranks + self.servers,
            runs_on="one host or several, CPU or CUDA (the servers compute on the CPU)",
            lockstep=sync,
            survives=not sync and self.over != "network",
            helps=self.mode == "async" and self.over != "network" and self.partition == "batch",
            partition=self.partition,
            compiles=True,
            copies=(self.ranks + 1, self.ranks + 1, 1),
            timeline=partial(served, ranks=self.ranks, servers=self.servers, sync=sync),
        )

    def check(self, job: Job) -> None:
        check_unwritten(self, job)
        if job.settings.sync_batchnorm:
            raise refuse(
                self,
                "has no step in which all ranks meet, which sync_batchnorm needs; use ddp, or locked with mode=turns",
            )
        if self.servers > 1 and (job.optimizer_traits.joins_rows or job.optimizer_traits.joins_tensors):
            raise refuse(
                self,
                "splits the parameters over servers, but this optimizer updates them together "
                f"(servers: {self.servers}); use servers=1",
            )
        empty = sum(not own for own in self.slices(job))
        if empty:
            raise refuse(
                self,
                f"has more servers than pieces to hold (servers: {self.servers}); use servers={self.servers - empty}",
            )

    def slices(self, job: Job) -> list[list[Slice]]:
        return assign_slices(trained_parameters(job.model), self.servers, self.split)

    def share(self, job: Job) -> Mapping[str, Tensor] | None:
        if self.over == "network":
            return None
        return message_tensors(dict(trained_parameters(job.model)), self.ranks, self.slices(job))

    def setup(self, job: Job, rank: Rank) -> Worker:
        if self.over == "memory" and rank.hosts > 1:
            raise BadInput(
                f"parameter_server:over=memory works within one host (hosts: {rank.hosts}); use over=network"
            )
        together = self.mode == "sync" and self.servers > 1 and job.settings.clip  # one norm of all slices
        group = dist.new_group(list(range(self.ranks, self.ranks + self.servers))) if together else None
        if rank.serves:
            return Server(job, rank, self.slices(job), self.mode, self.staleness, group)
        return Client(self, job, rank)


class Client(OrdinaryWorker):
    """A rank: gradient of its shard, push, pull."""

    not_captured = Worker.not_captured

    def __init__(self, strategy: ParameterServer, job: Job, rank: Rank):
        model = place_model(job, rank)
        several = strategy.mode == "sync" or job.settings.accumulate > 1
        super().__init__(job, rank, model, model, units=Units(job, rank, divided=several))
        self.own = dict(trained_parameters(model))
        self._strategy, self._slices = strategy, strategy.slices(job)
        self._group = 0  # samples of this rank in the update that is being accumulated
        self._home = GradientsInPlace(self.own, {})
        if rank.shared is None:
            self.servers_end: MemoryClientEnd | NetworkClientEnd = NetworkClientEnd(
                rank.clock, rank.ranks, self._slices, self.own
            )
            return
        shared = rank.shared
        self._home = GradientsInPlace(
            self.own, {name: shared[f"gradients/{rank.index}/values/{name}"] for name in self.own}
        )
        copies = self.own
        if strategy.mode == "sync" and all(_plain(parameter) for parameter in self.own.values()):
            # servers write only while all ranks wait, so ranks compute on the servers' weights themselves
            for name, parameter in self.own.items():
                parameter.data = shared[f"weights/{name}"]
            copies = {}
        self.servers_end = MemoryClientEnd(shared, rank.clock, rank.index, self._slices, self.own, copies)

    def step(self, batch: Batch | None) -> Loss:
        assert batch is not None
        self._group += batch.count
        self.clock.enter("communication")
        self._home.lay_out()
        loss = self.add_gradient(batch) if batch.count else Loss(0.0, 0)
        sync = self._strategy.mode == "sync"
        push = batch.update and (sync or self._group > 0)
        kind = PUSH if push else PASS
        units = self._units_share(batch, loss) if push and sync and self.units.divided else 0.0
        gradients = self._gradients(batch, sync) if push else {}
        self.servers_end.send(kind, gradients, units)
        if push:
            self._home.adopt(gradients)
        if push or self._strategy.mode == "bounded":
            self.servers_end.receive(kind)
        return loss

    def settle(self) -> list[Loss]:
        if self._strategy.mode == "async" and self.rank.shared is not None:
            self.servers_end.send(END, {})  # it may have made shares of others: the servers cannot count on rounds
        return super().settle()

    def _units_share(self, batch: Batch, loss: Loss) -> float:
        """This rank's units over the samples of the update; not a number where it has none and no loss either."""
        units = float(self.units.taken())
        return units / batch.step.group_total if units or math.isfinite(loss.mean) else math.nan

    def _gradients(self, batch: Batch, sync: bool) -> dict[str, Tensor | None]:
        """What has been accumulated; without rounds it is an update by itself, so it is scaled and clipped here."""
        share, samples = self._group / batch.step.group_total, self._group
        self._group = 0
        gradients = self._home.collect()
        if not sync and (scale := self.units.own_scale(samples)) is not None:
            for gradient in gradients.values():
                if gradient is not None:
                    gradient.mul_(scale.to(gradient.device))
        if not sync and self._strategy.scale == "shard":
            for gradient in gradients.values():
                if gradient is not None:
                    gradient.mul_(1 / share)
            share = 1.0
        if not sync and self.job.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.own.values(), self.job.settings.clip * share)
        for parameter in self.own.values():
            parameter.grad = None
        return gradients

    def weights(self) -> dict[str, Tensor] | None:
        averaged = average_buffers(self.rank, self.plain) if self.job.has_batchnorm else {}
        if not self.rank.leads:
            return None
        self.servers_end.fetch()
        return {**full_weights(self.plain), **averaged}

    def state(self) -> dict[str, Any] | None:
        everyone = self.rank.gather(None)
        if everyone is None:
            return None
        rows = [{item.name: item.stop - item.start for item in items} for items in self._slices]

        def joined(name: str, parts: dict[int, Any]) -> Any:
            """Rows of all servers where the value has any, in their order; else it is the same on every server."""
            shape, values = self.own[name].shape, [*parts.values()]
            cut = isinstance(values[0], Tensor) and shape and values[0].shape == (rows[min(parts)][name], *shape[1:])
            return torch.cat(values) if cut else values[0]

        return join_states([state for state in everyone if state is not None], joined)

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.plain.load_state_dict(dict(weights))

    @property
    def updates(self) -> int:
        return 0  # the servers make them

    @property
    def learning_rate(self) -> float | None:
        return self.servers_end.rate if self.servers_end.rate is not None else self.updater.learning_rate

    def figures(self) -> dict[str, Any]:
        return {"notes": average_notes(self.job, self.rank)}


def _plain(parameter: Tensor) -> bool:
    """Whether a rank can compute on this parameter in the servers' memory: laid out as it lies there."""
    return parameter.device.type == "cpu" and parameter.is_contiguous()
