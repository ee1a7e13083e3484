"""Whether a worker's steps can be captured, and what is recorded of them: as many steps in a row as keep the device busy.

All of it happens before the first step, on the real model and data; weights, optimizer and buffers are put back as
they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...data import nest
from ...data.feed import RankFeed
from ...data.resident import Resident
from ...model.late_weights import Beside, give_back
from ...record.cuda_clock import CudaClock
from ...strategies.contract import Worker
from ...strategies.job import Job
from ...strategies.pieces.worker import OrdinaryWorker
from ...world.rank import Rank
from .captured import Captured, Replay
from .graph import (
    Before,
    CannotRecord,
    Weights,
    compare_updates,
    draws_on_device,
    milliseconds,
    ordinary_step,
    recorded,
    run,
)
from .sgd_in_slices import sliced_sgd

GROUP_MS = 8.0  # a replay should keep the device busy this long, so that the host is always ahead of it
SAMPLED_STEPS = 12
OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


@dataclass(frozen=True)
class Capture:
    """The worker that trains, and why its steps are not captured where somebody could expect them to be."""

    worker: Worker
    not_captured: str | None = None

    def notes(self) -> list[str]:
        reason = self.worker.stopped if isinstance(self.worker, Captured) else self.not_captured
        return [f"steps are not captured in a CUDA graph: {reason}"] if reason else []

    def record(self) -> dict[str, Any]:
        """What the record says of captured steps; nothing where there is no GPU or nobody asked."""
        if isinstance(self.worker, Captured):
            return {
                "capture": self.worker.figures()["captured"],
                "phases_source": f"shares of {SAMPLED_STEPS} eager steps, total of the captured run",
            }
        if self.not_captured is not None:
            return {"capture": {"steps": 0, "steps_a_replay": 0, "reason": self.not_captured}}
        return {}


def capture(worker: Worker, feed: RankFeed, job: Job, rank: Rank) -> Capture:
    """The worker with its steps recorded, or as it was with the reason why they are not."""
    data = feed.resident
    reason = why_not(worker, data, job)
    if reason is not None:
        return Capture(worker, reason)
    assert isinstance(worker, OrdinaryWorker)
    assert data is not None
    assert isinstance(rank.clock, CudaClock)
    data.begin(rank.clock.steps // job.order.steps_per_epoch)
    captured = Captured(worker, data, feed.prepare)
    before = Before(worker)
    try:
        shares = _record(captured, before, rank.clock)
    except CannotRecord as problem:
        return Capture(worker, str(problem))
    finally:
        before.restore()
    rank.clock.capture(shares)
    feed.prepares = False  # a recorded step gathers and augments by itself
    return Capture(captured)


def why_not(worker: Worker, data: Resident | None, job: Job) -> str | None:
    """What keeps these steps from being recorded, as far as it can be told without trying."""
    if worker.not_captured is not None:
        return worker.not_captured
    if data is None:
        return "the training data is not on the GPU (a Dataset, or too large for its memory)"
    if job.order.samples < job.order.batch_size * job.settings.accumulate:
        return "the data is smaller than one update's batches"
    if not job.settings.fuse:
        return "the optimizer is set not to run fused"
    optimizer = worker.updater.optimizer
    if type(optimizer) not in OPTIMIZERS:
        return f"torch has no recordable {type(optimizer).__name__}; SGD, Adam and AdamW are"
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            return "the optimizer's learning rate is a tensor already"
        if group.get("dampening"):
            return f"SGD with dampening={group['dampening']} makes its first step differently"
        if group.get("fused") is False or group.get("foreach") is not None or group.get("differentiable"):
            return "the optimizer is set not to run fused"
    if any(getattr(module, "sparse", False) for module in worker.plain.modules()):
        return "sparse gradients have no fixed shape"
    return None


def _record(captured: Captured, before: Before, clock: CudaClock) -> list[float]:
    """Try the ordinary step, record it, compare both, and record as many in a row as keep the device busy.

    Returns the phases' shares of an ordinary step. All ordinary steps come first: recording begins with handing their memory
    back, and a recording's own memory is as much again.
    """
    draws = draws_on_device(captured)
    if draws and captured.accumulate > 1:
        raise CannotRecord("steps that draw random numbers cannot be accumulated in a recording")
    captured.together = _augments_together(captured)
    ordinary = _ordinary(captured, before)
    shares = _phases(captured, clock)
    one = _checked(captured, before, ordinary)
    took = milliseconds(captured, one)
    beside = _side_by_side(captured, before, ordinary, took)
    if beside is not None:
        one, took = beside
    elif draws:  # a try that broke off may have put another generator in place of the one this recording reads
        one = _checked(captured, before, ordinary)
    units = 1
    if not draws:  # a seed a step: only a replay of one step can have its own
        units = max(1, min(captured.most_units, round(GROUP_MS / took)))
    many = one if units == 1 else recorded(captured, units)
    captured.use(one, many, units)
    return shares


def _ordinary(captured: Captured, before: Before) -> tuple[Weights, Weights]:
    """What an ordinary update makes of the weights, and what the same update makes of them when it is made again."""
    found = []
    for _ in range(2):
        before.restore()
        run(captured, lambda: captured.program(1))
        found.append(before.now())
    return found[0], found[1]


def _checked(captured: Captured, before: Before, ordinary: tuple[Weights, Weights]) -> Replay:
    """A recording of one update that does what the ordinary one did."""
    one = recorded(captured, 1)
    before.restore()
    run(captured, one)
    compare_updates(before.began(), *ordinary, before.now())
    return one


def _side_by_side(
    captured: Captured, before: Before, ordinary: tuple[Weights, Weights], took: float
) -> tuple[Replay, float] | None:
    """The recording with weight gradients on streams of their own and a sliced update, where that is faster."""
    worker = captured.worker
    if worker.job.settings.precision != "fp32" or worker.job.settings.compile:
        return None
    beside = Beside(worker.plain.modules(), captured.data.device)
    worker.replace_parts(after_backward=beside.settle, write=sliced_sgd(worker.updater.optimizer))
    try:
        one = _checked(captured, before, ordinary)
        faster = milliseconds(captured, one)
        if faster < took:
            return one, faster
    except CannotRecord:
        pass
    worker.replace_parts()
    give_back(beside.layers)
    return None


def _augments_together(captured: Captured) -> bool:
    """Whether augmenting two batches at once gives what augmenting each gives (mixing within a batch does not)."""
    augment, data = captured.job.task.augment, captured.data
    count = captured.batch_count
    if augment is None or data.keys is None or len(data.indices) < 2 * count:
        return True
    input, keys = data.gather(data.indices[: 2 * count])[0], data.keys[: 2 * count]
    halves = (augment(nest.rows(input, at, at + count), keys[at : at + count]) for at in (0, count))
    for whole, first, second in zip(*map(nest.leaves, (augment(input, keys), *halves)), strict=True):
        if whole.shape[0] != 2 * count or not torch.allclose(whole, torch.cat((first, second)), atol=1e-5, rtol=1e-5):
            return False
    return True


def _phases(captured: Captured, clock: CudaClock) -> list[float]:
    """The shares of the phases in a short run of ordinary steps."""
    with clock.sample() as measured:
        for batch, _ in zip(captured.data.epoch(captured.data.at), range(SAMPLED_STEPS), strict=False):
            clock.begin_step()
            ordinary_step(captured, batch)
            clock.enter("other")
            clock.end_step()
    total = sum(measured) or 1
    return [value / total for value in measured]
