"""Locked: shared weights, and a lock around every write to them.

    turns   rank 0   gradient  [add]....[update]      the gradients are added in rank order, rank 0 makes
            rank 1   gradient  .....[add]......       one update of their sum, then all go on together
    free    rank 0   gradient  [update] gradient ..[update]
            rank 1   gradient  ........[update] gradient         each update as it comes, one at a time
    whole   rank 0   [read, gradient, update]........................
            rank 1   ........................[read, gradient, update]     nothing runs in parallel
    [] the lock is held, or it is this rank's turn    . waiting: the cost of the lock, shown as `wait`

The lock is a record lock of the kernel's: a rank that dies gives it back.

Cost per update, with P bytes of trained parameters and n ranks: turns hands over n * P bytes (a gradient of each
rank into the shared sum; sparse ones as rows of row bytes + 8), free and whole hand over nothing: gradients
go straight into the weights. (A rank on a GPU copies P bytes of weights in at each update, and in free and whole
P of gradients out.) Held: one copy of the weights, one gradient sum (turns), optimizer state once; gradients
and activations on each rank. turns is exact: one update per step of the sum in rank order. free and whole are not:
n updates a step, one after the other. Paper: Langford, Smola, Zinkevich, "Slow Learners are Fast", NIPS 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..data.batches import Batch
from ..data.order import PlannedStep
from ..errors import BadInput
from ..world.devices import default_ranks
from ..world.health.process_lock import ProcessLock
from ..world.health.waiting import Bell, wait_until
from ..world.rank import Rank
from ..world.shm.group_memory import fence
from .contract import Loss, Strategy, Traits, Worker, refuse
from .job import Job, trained_parameters
from .pieces.batchnorm import average_notes, mark_empty, share_batchnorm
from .pieces.gradient_slots import GradientSlot, slot_tensors
from .pieces.optimizer_state import shareable_state
from .pieces.parameter_slices import whole
from .pieces.refusals import check_choices, check_shareable, check_unwritten
from .pieces.shared_weights import shared_tensors
from .pieces.shared_worker import SharedWorker
from .pieces.timelines import in_turns, under_a_lock

OWN_UPDATES = "every rank makes updates of its own, one after the other"
EXACT: dict[str, bool | str] = {"turns": True, "free": OWN_UPDATES, "whole": OWN_UPDATES}


@dataclass(frozen=True)
class Locked(Strategy):
    """Shared weights, updates under a lock.

    Args:
        ranks: how many processes train; by default one per GPU, else one per core, at least 2
        mode: what happens under the lock: `turns` sums all gradients into one update, as single makes it; `free` has
            every rank update when it is ready; `whole` holds the lock for the whole step
        optimizer: with `free` and `whole`: one optimizer state `shared` by all ranks, or every `rank` its own
        scale: with `free` and `whole`, what a rank divides its gradient by: the samples of the `global` batch, so
            that a step moves the weights as far as under single, or those of its own `shard`, the classic reading
        partition: with `free` and `whole`, what a rank reads: a part of every `batch`, or a `fixed` part of the data for
            the whole run

    Example:
        manyhands train glyphs locked:mode=free --ranks 2
    """

    ranks: int = field(default_factory=default_ranks)
    mode: str = "turns"
    optimizer: str = "shared"
    scale: str = "global"
    partition: str = "batch"

    name = "locked"
    summary = "shared weights, updates one at a time under a lock"

    def __post_init__(self) -> None:
        check_choices(
            self,
            mode=tuple(EXACT),
            optimizer=("shared", "rank"),
            scale=("global", "shard"),
            partition=("batch", "fixed"),
        )
        if self.mode == "turns" and set(self.options) - {"mode"}:
            raise BadInput(
                f"{self}: mode=turns makes the updates of single; {', '.join(self.options)} need mode=free or whole"
            )

    @property
    def traits(self) -> Traits:
        turns = self.mode == "turns"
        return Traits(
            exact=EXACT[self.mode],
            runs_on="one host, CPU (or GPUs with the weights in host memory)",
            hosts=False,
            lockstep=turns,
            helps=self.mode == "free" and self.partition == "batch",
            partition=self.partition,
            joins_batchnorm=turns,
            copies=(1, self.ranks + turns, 1),
            timeline=partial(in_turns, ranks=self.ranks)
            if turns
            else partial(under_a_lock, ranks=self.ranks, whole=self.mode == "whole"),
        )

    def check(self, job: Job) -> None:
        check_unwritten(self, job)
        if job.settings.sync_batchnorm and self.mode != "turns":
            raise refuse(self, f"ranks do not meet in mode={self.mode}, so sync_batchnorm cannot work; use mode=turns")
        check_shareable(self, job)
        if self.mode != "turns" and self.optimizer == "shared":
            shareable_state(self, job)

    def share(self, job: Job) -> Mapping[str, Tensor]:
        shared = shared_tensors(job.model, self.ranks)
        if self.mode == "turns":
            return {
                **shared,
                "turn": torch.zeros(2, dtype=torch.int64),
                "units": torch.zeros((), dtype=torch.float64),
                **slot_tensors(dict(trained_parameters(job.model)), "sum"),
            }
        return {**shared, **(shareable_state(self, job) if self.optimizer == "shared" else {})}

    def setup(self, job: Job, rank: Rank) -> Worker:
        if self.mode == "turns":
            return TurnsWorker(job, rank)
        return LockWorker(job, rank, self.scale, whole=self.mode == "whole")


class LockWorker(SharedWorker):
    """`free` and `whole`: they differ in where the lock is taken."""

    def __init__(self, job: Job, rank: Rank, scale: str, whole: bool):
        super().__init__(job, rank, scale)
        self._lock, self._whole = ProcessLock(rank.board.fd), whole

    def step(self, batch: Batch | None) -> Loss:
        assert batch is not None
        if self._whole:
            self._acquire()
        try:
            self.read()
            loss = self.gradient(batch)
            if batch.update:
                if not self._whole:
                    self._acquire()
                self.write(batch)
        finally:
            self._lock.release()
        return loss

    def _acquire(self) -> None:
        with self.clock.during("wait"):
            self._lock.acquire()


class TurnsWorker(SharedWorker):
    """`turns`: a counter says whose turn it is. A round has n turns to add, and one more for rank 0 to update."""

    def __init__(self, job: Job, rank: Rank):
        super().__init__(job, rank, sums=True)
        assert rank.shared is not None
        if job.settings.sync_batchnorm:
            share_batchnorm(self.plain)
        self._own = dict(trained_parameters(self.plain))
        self._slot = GradientSlot(rank.shared, "sum", [whole(name, value) for name, value in self._own.items()])
        self._turn: Any = rank.shared["turn"].numpy()
        self._bell = Bell(rank.shared["turn"][1:])
        self._units = rank.shared["units"]  # of the update, added as the gradients are
        self._round = 0  # the turn with which this round began

    def step(self, batch: Batch | None) -> Loss:
        assert batch is not None
        mark_empty(self.plain, batch.count == 0)
        loss = self.add_gradient(batch)
        if batch.update:
            self._add_in_turn()
            if self.rank.index == 0:
                self._update(batch.step)
            self._wait_for(self._round + self.rank.ranks + 1)
            self._round += self.rank.ranks + 1
            with self.clock.during("communication"):
                self.clock.count(self.shared.read())
        return self.units.judged(loss)

    def _add_in_turn(self) -> None:
        found = {name: parameter.grad for name, parameter in self._own.items()}
        self._wait_for(self._round + self.rank.index)
        with self.clock.during("communication"):
            self.clock.count(self._slot.put(found) if self.rank.index == 0 else self._slot.add(found))
            if self.units.divided:
                others = self._units if self.rank.index else 0
                self._units.copy_(self.units.taken().cpu() + others)
        self._end_turn()
        for parameter in self._own.values():
            parameter.grad = None

    def _update(self, step: PlannedStep) -> None:
        self._wait_for(self._round + self.rank.ranks)
        self.clock.enter("update")
        for home, gradient in zip(self.shared.home.values(), self._slot.get(), strict=True):
            home.grad = gradient
        scale = self.units.scale_from(self._units, step) if self.units.divided else None
        self.updater.update(scale=scale)
        self._end_turn()

    def _end_turn(self) -> None:
        if fence:
            fence()
        self._turn[0] += 1
        self._bell.ring()

    def _wait_for(self, turn: int) -> None:
        with self.clock.during("wait"):
            wait_until(lambda: bool(self._turn[0] >= turn), self._missing, bell=self._bell)

    def _missing(self) -> str:
        turn = (int(self._turn[0]) - self._round) % (self.rank.ranks + 1)
        return f"rank {turn % self.rank.ranks} of {self.rank.ranks} did not reach its turn"

    def figures(self) -> dict[str, Any]:
        return {"notes": average_notes(self.job, self.rank)}
