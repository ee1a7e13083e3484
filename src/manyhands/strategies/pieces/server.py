"""A server's side of the parameter server: it holds slices of the weights and serves one round a step.

sync       take a message of every rank, sum in rank order, update, answer all
async      take messages as they come: update, answer; the round ends when every rank has made its step; at the end
           of an epoch those that are done make shares of slower ranks, until each has said that nothing more comes
bounded    the same, but a rank too far ahead of the slowest is answered later
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...data.batches import Batch
from ...errors import RankFailed
from ...model.optimizers import stand_in
from ...world.rank import Rank
from ..contract import Loss, Worker
from ..job import Job, trained_parameters
from .gradient_slots import add
from .optimizer_state import change_state, part_optimizer
from .parameter_slices import Slice
from .server_memory import MemoryServerEnd
from .server_messages import END, PUSH, Gradients, Message
from .server_network import NetworkServerEnd
from .units import correction
from .updater import Updater


class Server(Worker):
    """A server: one round takes a message of every rank."""

    def __init__(
        self, job: Job, rank: Rank, slices: list[list[Slice]], mode: str, bound: int, group: dist.ProcessGroup | None
    ):
        self.mode, self.bound = mode, bound
        self.number = rank.index - rank.ranks
        self.slices = slices[self.number]
        self.shapes = {name: parameter.shape for name, parameter in trained_parameters(job.model)}
        whole = dict(trained_parameters(job.model))
        self.own = {name: stand_in(whole[name], value) for name, value in self._slice_of(job, rank.shared)}
        updater = Updater(job, self.own.items(), self._norm if group else None, part_optimizer(job, self.own))
        super().__init__(job, rank, job.model, updater)
        if self.mode != "sync":
            self.updater.clip = None  # a rank's gradient is an update by itself and is clipped there
        self._servers = group
        self.staleness: list[int] = []
        self.applied = [0] * rank.ranks  # updates with the gradient of each rank
        self.progress = [0] * rank.ranks  # messages of each rank
        self.round = 0
        self.through: set[int] = set()  # ranks from which nothing more comes until all have met
        self.waiting: list[tuple[Message, int]] = []  # answers held back (bounded), and how long their updates took
        if rank.shared is not None:
            self.ranks_end: MemoryServerEnd | NetworkServerEnd = MemoryServerEnd(
                rank.shared, rank.clock, self.number, rank.ranks, self.slices
            )
        else:
            self.ranks_end = NetworkServerEnd(rank.clock, rank.ranks, self.slices, self.own, self.mode == "bounded")

    def _slice_of(self, job: Job, shared: Mapping[str, Tensor] | None) -> list[tuple[str, Tensor]]:
        """In shared memory the weights are updated where all ranks see them."""
        whole = dict(trained_parameters(job.model))
        if shared is None:
            return [  # laid out as the gradients come over the network
                (item.name, item.of(whole[item.name].detach()).cpu().clone(memory_format=torch.contiguous_format))
                for item in self.slices
            ]
        return [(item.name, item.of(shared[f"weights/{item.name}"])) for item in self.slices]

    def step(self, batch: Batch | None) -> None:
        self.rank.clock.enter("other")
        self.round += 1
        self._sum_round() if self.mode == "sync" else self._serve_round()

    def _sum_round(self) -> None:
        messages = self.ranks_end.take_round()
        pushed = [message for message in messages if message.kind == PUSH]
        took = self._update([message.gradients for message in pushed], self._scale(pushed)) if pushed else 0
        for message in messages:
            self._answer(message, took)

    def _serve_round(self) -> None:
        """Serve messages as they come until every rank has made this step."""
        self._answer_those_within_bounds()  # a rank that died meanwhile holds nobody back
        self._serve_while(self._awaited)

    def _serve_while(self, awaited: Callable[[], bool]) -> None:
        while awaited():
            message = self.ranks_end.take(awaited)
            if message is None:
                break
            if message.kind == END:
                self.through.add(message.sender)
            else:
                self.progress[message.sender] += 1
            took = 0
            if message.kind == PUSH:
                self._note_staleness(message)
                took = self._update([message.gradients])
                self.applied[message.sender] += 1
            self.waiting.append((message, took))
            self._answer_those_within_bounds()

    def _awaited(self) -> bool:
        return any(self.progress[rank] < self.round for rank in self.rank.board.living())

    def settle(self) -> list[Loss]:
        """Serve shares that ranks make for slower ones; the rounds begin again where all of them are then."""
        if self.mode == "async" and self.rank.shared is not None:
            self._serve_while(lambda: not self.through.issuperset(self.rank.board.living()))
            self.through.clear()
            self.progress = [self.round] * self.rank.ranks
        return super().settle()

    def _answer_those_within_bounds(self) -> None:
        slowest = min((self.progress[rank] for rank in self.rank.board.living()), default=0)
        bounded = self.mode == "bounded"
        ready = [item for item in self.waiting if not bounded or self.progress[item[0].sender] - slowest <= self.bound]
        for item in ready:
            self.waiting.remove(item)
            self._answer(*item)

    def _answer(self, message: Message, took: int) -> None:
        self.ranks_end.reply(message.sender, message.kind, sum(self.applied), self.updater.learning_rate, took)

    def _note_staleness(self, message: Message) -> None:
        late = sum(self.applied) - message.seen  # a rank's own update is in the weights it pulls
        self.staleness.extend([0] * (late + 1 - len(self.staleness)))
        self.staleness[late] += 1

    def _update(self, gradients: Sequence[Gradients], scale: Tensor | None = None) -> int:
        """With the sum of these; returns the nanoseconds it took, which the ranks have stood and waited."""
        began = monotonic_ns()
        with self.rank.clock.during("update"):
            for parameter, gradient in zip(self.own.values(), _summed(gradients), strict=True):
                parameter.grad = gradient
            # without rounds the schedule moves once a step, not once an update
            last = self.mode == "sync" or (self.updater.updates + 1) % self.rank.ranks == 0
            self.updater.update(advance=last, scale=scale)
        return monotonic_ns() - began

    def _scale(self, messages: Sequence[Message]) -> Tensor | None:
        """To the mean over the units of all ranks, where the task counts any."""
        if self.job.weight is None:
            return None
        known = [message.units for message in messages if not math.isnan(message.units)]
        units = sum(known)  # over the samples of the update
        if not units and len(known) < len(messages):
            raise RankFailed(
                f"step {self.round}: no rank's targets hold a unit that task.weight counts, so the loss is not a number; "
                "look at the data",
                step=self.round,
                kind="loss",
            )
        return correction(1.0, torch.tensor(units, dtype=torch.float64))

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """Of the whole gradient: the squares of all servers' slices."""
        square = (
            torch.stack([gradient.norm().double() ** 2 for gradient in gradients]).sum()
            if gradients
            else torch.zeros(()).double()
        )
        dist.all_reduce(square, group=self._servers)
        return square.sqrt().float()

    def weights(self) -> None:
        if self.job.has_batchnorm:
            self.rank.gather(None)
        self.ranks_end.hand_out(sum(self.applied), self.updater.learning_rate)

    def state(self) -> None:
        state = self.updater.state()
        steps = state["updates"] if self.mode == "sync" else state["updates"] // self.rank.ranks
        self.rank.gather({**state, "updates": steps})

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        for item in self.slices:
            self.own[item.name].copy_(item.of(weights[item.name]))
        own = {item.name: item for item in self.slices}

        def cut(name: str, value: Any) -> Any:
            whole = name in own and isinstance(value, Tensor) and value.shape == self.shapes[name]
            return own[name].of(value) if whole else value

        self.updater.load(change_state(state, cut))
        if self.mode != "sync":
            self.updater.updates *= self.rank.ranks

    @property
    def updates(self) -> int:
        if self.number:
            return 0  # the same updates, of another slice
        return self.updater.updates if self.mode == "sync" else sum(self.applied)

    def figures(self) -> dict[str, Any]:
        return {"staleness": self.staleness} if self.number == 0 and self.mode != "sync" else {}


def _summed(gradients: Sequence[Gradients]) -> Gradients:
    """In rank order, whatever the order of arrival."""
    total = list(gradients[0])
    for others in gradients[1:]:
        total = [add(sum_, other) for sum_, other in zip(total, others, strict=True)]
    return total
