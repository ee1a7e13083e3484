"""Captured steps: the ordinary step recorded once in a CUDA graph and replayed, several steps at a time.

A small model leaves a GPU idle while Python launches its kernels one by one. A recorded step is launched whole:

    gather the samples of all steps by index -> augment them together
    for each step:    forward -> backward -> every `accumulate` steps: clip, update at that step's learning rate
    move the place in the data on

Everything a step needs is on the device (`data/resident.py`): the samples, the order of the epoch, the keys, the
place in it, and a table of learning rates which the host fills in before each replay. The loop hands steps over one
by one as ever; they run when a group is full, or when somebody wants to see the weights. Short batches and the tail
of an epoch run as ordinary steps between replays. Before the first replay the recorded step is checked against the
ordinary one from the same weights; what cannot be recorded trains all the same, and the reason is in the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...data import nest
from ...data.batches import Batch
from ...data.resident import Resident
from ...strategies.contract import Loss, Worker
from ...strategies.pieces.worker import OrdinaryWorker

Replay = Callable[[], None]
MOST_STEPS = 32


class Captured(Worker):
    """A worker around the ordinary one: the same steps, recorded and replayed."""

    def __init__(self, worker: OrdinaryWorker, data: Resident, prepare: Callable[[Batch], None]):
        super().__init__(worker.job, worker.rank, worker.plain, worker.updater)
        self.worker, self.data, self.prepare = worker, data, prepare
        self.accumulate = self.job.settings.accumulate
        first = next(self.job.order.steps(0))
        self.batch_count = data.count_of(first)  # samples of this rank in a whole batch
        self._whole = first  # a step like all that are recorded
        groups = len(worker.updater.optimizer.param_groups)
        device = data.device
        self.most_units = max(
            1, min(MOST_STEPS, self.job.order.samples // self.job.order.batch_size) // self.accumulate
        )
        self._place = torch.zeros((), dtype=torch.int64, device=device)
        self._rates = torch.zeros(self.most_units, groups, device=device)
        self._losses = torch.zeros(self.most_units * self.accumulate, device=device)
        self._units = None if self.job.weight is None else torch.zeros_like(self._losses, dtype=torch.float64)
        self._rows = torch.arange(self.most_units * self.accumulate * self.batch_count, device=device)
        self._expected = -1  # where the place on the device stands, as the host knows it
        self._pending: list[Batch] = []
        self._due_rates: list[list[float]] = []
        self._sent_rates: list[list[float]] = []
        self._fixed_options = self._options()
        self.together = True  # augmentation of several batches at once gives the same samples
        self.units = 1  # updates a replay of `_many`
        self._one: Replay = lambda: None
        self._many: Replay = lambda: None
        self.replayed = 0  # steps
        self.stopped: str | None = None  # why no more steps are replayed

    # ------------------------------------------------------------ recording

    def use(self, one: Replay, many: Replay, units: int) -> None:
        self._one, self._many, self.units = one, many, units

    def program(self, units: int) -> None:
        """The work of `units` updates, reading its place and rates from the device."""
        count, steps = self.batch_count, units * self.accumulate
        rows = self._place + self._rows[: steps * count]
        input, target = self.data.gather(self.data.indices.index_select(0, rows))
        augment, keys = self.job.task.augment, None
        if augment is not None and self.data.keys is not None:
            keys = self.data.keys.index_select(0, rows)
            if self.together:
                input = augment(input, keys)
        found: list[Loss] = []
        for step in range(steps):
            start, stop = step * count, (step + 1) * count
            own = nest.rows(input, start, stop)
            if augment is not None and keys is not None and not self.together:
                own = augment(own, keys[start:stop])
            goal = nest.rows(target, start, stop)
            found.append(self.worker.add_gradient(Batch(own, goal, count, self._whole)))
            if (step + 1) % self.accumulate == 0:
                with self._rates_of(step // self.accumulate):
                    self.worker.updater.apply(self.worker.units.scale(self._whole))
                    found[-1] = self.worker.units.judged(found[-1])
        torch.stack([loss.mean for loss in found], out=self._losses[:steps])  # type: ignore[misc]
        if self._units is not None:
            torch.stack([loss.units for loss in found], out=self._units[:steps])  # type: ignore[misc]
        self._place += steps * count

    @contextmanager
    def _rates_of(self, update: int) -> Iterator[None]:
        """The optimizer reads its rates from row `update` of the table."""
        optimizer = self.worker.updater.optimizer
        before = [group["lr"] for group in optimizer.param_groups]
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] = self._rates[update, number]
        try:
            yield
        finally:
            for group, rate in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = rate

    def forget_place(self) -> None:
        """The place on the device moved without the host keeping count."""
        self._expected = -1

    def set(self, place: int, rates: list[list[float]]) -> None:
        """Tell the device where the next steps begin and how fast they learn, where it does not know yet."""
        if place != self._expected:
            self._place.fill_(place)
            self._expected = place
        if rates != self._sent_rates[: len(rates)]:
            staged = torch.tensor(rates, pin_memory=self._rates.is_cuda)  # from other memory the copy would wait
            self._rates[: len(rates)].copy_(staged, non_blocking=True)
            self._sent_rates = [list(row) for row in rates]

    # ------------------------------------------------------------ the worker's contract

    def step(self, batch: Batch | None) -> Loss | list[Loss] | None:
        assert batch is not None
        if not self._fits(batch):
            return [*self.settle(), self._ordinary(batch)]
        self._pending.append(batch)
        if batch.update:
            updater = self.worker.updater
            self._due_rates.append([float(group["lr"]) for group in updater.optimizer.param_groups])
            updater.advance()
            if self._options() != self._fixed_options:
                self.stopped = "the schedule changes more than the learning rate"
                return self.settle()
        if len(self._pending) < self.units * self.accumulate:
            return None
        return self._replay(self._many, self.units)

    def settle(self) -> list[Loss]:
        """Run what was handed over and has not run yet."""
        losses = []
        while len(self._pending) >= self.accumulate:
            losses.append(self._replay(self._one, 1))
        while self._pending:
            losses.append(self._ordinary(self._pending.pop(0)))
        return losses

    def _fits(self, batch: Batch) -> bool:
        average = self.worker.updater.average
        if self.stopped is not None or (average is not None and not average.begun):
            return False  # (the update that begins the average is not like those that move it)
        whole = batch.count == self.batch_count and batch.step.group_total == self._whole.group_total
        return whole and (bool(self._pending) or batch.step.number % self.accumulate == 0)

    def _replay(self, replay: Replay, units: int) -> Loss:
        steps = units * self.accumulate
        first = self._pending[0].step
        place = self.data.start_of(first)
        self.set(place, self._due_rates[:units])
        replay()
        self._expected = place + steps * self.batch_count
        del self._pending[:steps], self._due_rates[:units]
        self.replayed += steps
        self.clock.ran()
        counted = None if self._units is None else self._units[:steps].clone()
        return Loss(self._losses[:steps].clone(), self.batch_count, counted)

    def _ordinary(self, batch: Batch) -> Loss:
        self.prepare(batch)
        loss = self.worker.step(batch)
        self.clock.ran()
        assert loss is not None
        return loss

    def _options(self) -> list[dict[str, Any]]:
        groups = self.worker.updater.optimizer.param_groups
        return [
            {k: v for k, v in group.items() if k not in ("params", "param_names", "lr", "fused")} for group in groups
        ]

    def figures(self) -> dict[str, Any]:
        return {
            **self.worker.figures(),
            "captured": {
                "steps": self.replayed,
                "steps_a_replay": self.units * self.accumulate,
                "reason": self.stopped,
            },
        }
