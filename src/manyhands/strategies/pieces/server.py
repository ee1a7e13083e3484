"""A server's side of the parameter server: it holds slices of the weights and serves one round a step.

sync       take a letter of every rank, sum in rank order, update, answer all
async      take letters as they come: update, answer; the round ends when every rank has made its step
bounded    the same, but a rank too far ahead of the slowest is answered later
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...data.batches import Batch
from ...model.optimizers import stand_in
from ...world.rank import Rank
from ..contract import Worker
from ..job import Job, trained_parameters
from .gradient_slots import add_all
from .part_optimizer import part_optimizer
from .server_messages import PUSH, Gradients, Letter, MemoryOffice, Office
from .server_network import NetworkOffice
from .server_slices import Slice, slice_state
from .updater import Updater


class Server(Worker):
    """A server: one round takes a letter of every rank."""

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
        self.progress = [0] * rank.ranks  # letters of each rank
        self.round = 0
        self.waiting: list[tuple[Letter, int]] = []  # answers held back (bounded), and how long their updates took
        if rank.shared is not None:
            self.office: Office = MemoryOffice(rank.shared, rank.clock, self.number, rank.ranks, self.slices)
        else:
            self.office = NetworkOffice(rank.clock, rank.ranks, self.slices, self.own, self.mode == "bounded")

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
        letters = self.office.take_round()
        pushed = [letter for letter in letters if letter.kind == PUSH]
        took = self._update([letter.gradients for letter in pushed]) if pushed else 0
        for letter in letters:
            self._answer(letter, took)

    def _serve_round(self) -> None:
        """Serve letters as they come until every rank has made this step."""
        everyone = range(self.rank.ranks)
        self._answer_those_within_bounds()  # a rank that died meanwhile holds nobody back
        while self._awaited():
            letter = self.office.take(everyone, self._awaited)
            if letter is None:
                break
            self.progress[letter.sender] += 1
            took = 0
            if letter.kind == PUSH:
                self._note_staleness(letter)
                took = self._update([letter.gradients])
                self.applied[letter.sender] += 1
            self.waiting.append((letter, took))
            self._answer_those_within_bounds()

    def _awaited(self) -> bool:
        return any(self.progress[rank] < self.round for rank in self.rank.board.living())

    def _answer_those_within_bounds(self) -> None:
        slowest = min((self.progress[rank] for rank in self.rank.board.living()), default=0)
        bounded = self.mode == "bounded"
        ready = [item for item in self.waiting if not bounded or self.progress[item[0].sender] - slowest <= self.bound]
        for item in ready:
            self.waiting.remove(item)
            self._answer(*item)

    def _answer(self, letter: Letter, took: int) -> None:
        self.office.reply(letter.sender, letter.kind, sum(self.applied), self.updater.learning_rate, took)

    def _note_staleness(self, letter: Letter) -> None:
        late = sum(self.applied) - letter.seen  # a rank's own update is in the weights it pulls
        self.staleness.extend([0] * (late + 1 - len(self.staleness)))
        self.staleness[late] += 1

    def _update(self, gradients: Sequence[Gradients]) -> int:
        """With the sum of these; returns the nanoseconds it took, which the ranks have stood and waited."""
        began = monotonic_ns()
        with self.rank.clock.during("update"):
            for parameter, gradient in zip(self.own.values(), _summed(gradients), strict=True):
                parameter.grad = gradient
            # without rounds the schedule moves once a step, not once an update
            last = self.mode == "sync" or (self.updater.updates + 1) % self.rank.ranks == 0
            self.updater.update(advance=last)
        return monotonic_ns() - began

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
        self.office.hand_out(sum(self.applied), self.updater.learning_rate)

    def state(self) -> None:
        state = self.updater.state()
        steps = state["updates"] if self.mode == "sync" else state["updates"] // self.rank.ranks
        self.rank.gather({**state, "updates": steps})

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        for item in self.slices:
            self.own[item.name].copy_(item.of(weights[item.name]))
        self.updater.load(slice_state(state, self.slices, self.shapes))
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
        total = add_all(total, others)
    return total
