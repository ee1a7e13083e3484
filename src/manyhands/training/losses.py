"""The losses of one rank's steps. Those on a GPU come back in blocks, read when they have arrived, so that no step waits.

A rank keeps them until they are handed over, at the end of an epoch or for a checkpoint.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import RankFailed
from ..record.step_losses import StepLosses
from ..strategies.contract import Loss
from ..world.health.heartbeats import who
from ..world.rank import Rank

BLOCK = 50  # steps whose losses travel from the device together
Known = tuple[int, float, int, float]  # step, mean, samples, and the units it is a mean over: samples where not counted


class Losses:
    """`latest` is the last that has arrived, its step counted from 0."""

    def __init__(self, rank: Rank):
        self.rank = rank
        self.latest: Known | None = None
        self._known = StepLosses()
        self._there: list[tuple[int, Loss]] = []  # (first step, means and samples of each) still on the device
        self._steps_there = 0
        self._travelling: deque[tuple[Tensor, torch.cuda.Event, list[tuple[int, int]]]] = deque()

    def note(self, found: Loss | Sequence[Loss] | None, step: int) -> None:
        """The losses a worker gave in `step`; one that runs several steps at once gives those of the steps before too."""
        if found is None:
            return
        losses = [found] if isinstance(found, Loss) else found
        first = step + 1 - sum(map(_steps, losses))
        for loss in losses:
            self._note(loss, first)
            first += _steps(loss)

    def _note(self, loss: Loss, step: int) -> None:
        mean, count, units = loss
        if not isinstance(mean, Tensor):
            self._know(step, mean, count, count)
        elif mean.device.type == "cpu":
            means = mean.reshape(-1).tolist()
            counted = [count] * len(means) if units is None else torch.as_tensor(units).reshape(-1).tolist()
            for number, pair in enumerate(zip(means, counted, strict=True)):
                self._know(step + number, pair[0], count, pair[1])
        else:
            self._there.append((step, loss))
            self._steps_there += _steps(loss)
            if self._steps_there >= BLOCK:
                self._send()
                while self._travelling and self._travelling[0][1].query():
                    self._arrive()

    def hand_over(self, upto: int) -> StepLosses:
        """Those of the steps up to `upto` that were not handed over yet; from then on this rank knows them no more."""
        self.read()
        known, self._known = self._known, StepLosses(first=upto)
        return known

    def begin(self, step: int) -> None:
        """So many steps were made before this launch."""
        self._known = StepLosses(first=step)

    def read(self) -> None:
        """Wait for all that are still on the device."""
        self._send()
        while self._travelling:
            self._travelling[0][1].synchronize()
            self._arrive()

    def _send(self) -> None:
        if not self._there:
            return
        means = torch.cat([loss.mean.detach().reshape(-1).float() for _, loss in self._there])  # type: ignore[union-attr]
        units = [loss.units.reshape(-1) for _, loss in self._there if isinstance(loss.units, Tensor)]
        values = torch.cat([means.double(), *units]) if units else means
        block = torch.empty_like(values, device="cpu", pin_memory=True)
        block.copy_(values, non_blocking=True)
        sent = torch.cuda.Event()
        sent.record()
        steps = [(step + number, loss.count) for step, loss in self._there for number in range(_steps(loss))]
        self._travelling.append((block, sent, steps))
        self._there, self._steps_there = [], 0

    def _arrive(self) -> None:
        block, _, steps = self._travelling.popleft()
        values = block.tolist()
        means, units = values[: len(steps)], values[len(steps) :] or [count for _, count in steps]
        for (step, count), mean, number in zip(steps, means, units, strict=True):
            self._know(step, mean, count, number)

    def _know(self, step: int, mean: float, count: int, units: float) -> None:
        if count and units != 0 and not math.isfinite(mean):  # a part that is all padding has no loss
            raise RankFailed(
                f"{who(self.rank.index, self.rank.ranks, self.rank.processes, self.rank.board.host)}: the loss of step {step + 1} is {mean}, "
                "not a finite number; lower the learning rate, clip gradients (clip=1.0) or look at the data",
                rank=self.rank.index,
                step=step + 1,
                phase="forward",
                kind="loss",
            )
        self.latest = (step, mean, count, 0.0 if math.isnan(units) or not count else units)
        self._known.note(*self.latest)


def weighted_mean(losses: Iterable[Known]) -> float | None:
    """The mean over all samples, or units, behind these losses."""
    counted = [(mean * units, units) for _, mean, _, units in losses if units]
    return sum(total for total, _ in counted) / sum(units for _, units in counted) if counted else None


def _steps(loss: Loss) -> int:
    return loss.mean.numel() if isinstance(loss.mean, Tensor) else 1
