"""The experiments: every change that may make a strategy equal to `single`, and what it shows if it does.

What was seen of the task before the start (the proof of a fit) says which are tried first; none is believed untried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial

import torch
from torch import nn

from ...data.loader_parts import LoaderParts
from ...data.loading import DatasetSource
from ...strategies.contract import Strategy
from ...strategies.job import Job, trained_parameters
from ...task import Task
from .calm import calm
from .fits import Case, Change
from .forgetful import forgetful
from .mean_weight import in_words, is_a_sum, mean_over
from .one_by_one import MeanSquare, joined, one_by_one
from .parts import (
    EveryParameterReached,
    FullInput,
    Kept,
    fixed_statistics,
    full_precision,
    has_hooks,
    read_once,
    without_hooks,
)
from .variants import with_model

Signed = tuple[bool, Change]  # whether there is a sign of it, and the change


def changes(job: Job, steps: int) -> list[Change]:
    """Those that apply to a job: first what there is a sign of, then the others."""
    found = [
        *_of_the_model(job),
        *_of_the_data(job, steps),
        *_of_settings(job),
        *_of_the_loss(job),
        *_of_the_optimizer(job),
    ]
    return [change for _, change in sorted(found, key=lambda entry: not entry[0])]  # the order above, but for signs


def applies(change: Change, strategy: Strategy, failed: bool) -> bool:
    """Joining BatchNorm and looking for unused parameters are options of some strategies only. A strategy that did not
    look for these has failed where there are any."""
    if change.make is _sync:
        return strategy.traits.joins_batchnorm
    if change.make is _find_unused:
        return failed and any(item.name == "find_unused" for item in fields(strategy))  # type: ignore[arg-type]
    return True


def _on_task(function: Callable[[Task], Task]) -> Callable[[Case], Case]:
    return lambda case: replace(case, task=function(case.task))


def _on_model(change: Callable[[nn.Module], object]) -> Callable[[Case], Case]:
    return lambda case: replace(case, task=with_model(case.task, change))


# ---------------------------------------------------------------- the model


def _sync(case: Case) -> Case:
    return case.with_step(sync_batchnorm=True) if case.strategy.traits.joins_batchnorm else case


def _find_unused(case: Case) -> Case:
    known = {item.name for item in fields(case.strategy)}  # type: ignore[arg-type]
    return replace(case, strategy=replace(case.strategy, find_unused=True)) if "find_unused" in known else case  # type: ignore[type-var, call-arg]


def _of_the_model(job: Job) -> Iterator[Signed]:
    if job.has_batchnorm and not job.settings.sync_batchnorm:
        why = "BatchNorm normalises every part of a batch by that part's own mean and variance"
        yield True, Change("batchnorm", "with sync_batchnorm", _sync, why, "use sync_batchnorm (--sync-batchnorm)")
        cure = "use ddp with sync_batchnorm, or GroupNorm or LayerNorm in place of BatchNorm"
        yield True, Change("batchnorm", "with BatchNorm's statistics fixed", _on_model(fixed_statistics), why, cure)
    yield (
        job.proof.random is not None,
        Change(
            "randomness",
            "without dropout and other random numbers",
            _on_task(calm),
            "every rank draws random numbers of its own (dropout and the like)",
            "nothing is wrong with that: results are as good on average; set dropout to 0 to compare with single",
        ),
    )
    yield (
        job.proof.state is not None,
        Change(
            "state",
            "with nothing kept between batches",
            _on_task(forgetful),
            "something is kept from batch to batch, and every rank keeps what its own part of the batches gave",
            "make what is kept a function of the weights, or update it from sums over all ranks",
        ),
    )
    yield (
        has_hooks(job.model),
        Change(
            "clipping",
            "without hooks on gradients",
            _on_model(without_hooks),
            "a hook changes gradients on every rank before they are summed, and what it does (clipping, say) is not linear",
            "leave the hook out and use clip (--clip), which sees the gradient of the whole batch",
        ),
    )


# ---------------------------------------------------------------- the data


def _of_the_data(job: Job, steps: int) -> Iterator[Signed]:
    if job.task.augment is not None:
        yield (
            True,
            Change(
                "augmentation",
                "without augmentation",
                lambda case: case.with_task(augment=None),
                "task.augment gives a sample another result on another rank: it mixes samples of its part of a batch, or "
                "draws numbers that do not come from the samples' keys",
                "draw from mh.augment.uniform(keys, count), and mix a sample only with itself",
            ),
        )
    if isinstance(job.train, DatasetSource):
        yield (
            True,
            Change(
                "data",
                "with samples that were read once for all",
                _on_task(_Once(job, steps)),
                "the data set gives other samples for the same indices, depending on what was read before (a generator or "
                "a counter of its own)",
                "draw from torch's, numpy's or Python's global generator, which is seeded for each sample, or from one "
                "that is seeded by the index",
            ),
        )
    if isinstance(job.train, DatasetSource) and job.train.collate.collate is not None:
        yield (
            False,
            Change(
                "data",
                "with samples that were collated once, one by one",
                _on_task(_Once(job, steps, collated=True)),
                "the collate function gives a sample another result in another part of a batch, or on another rank (it draws "
                "random numbers, say)",
                "draw random numbers in the data set, where they are seeded for each sample",
            ),
        )
    if job.settings.loader_workers not in (None, 0):
        yield (
            False,
            Change(
                "data",
                "without loader workers",
                lambda case: case.with_step(loader_workers=0),
                "loader workers give other samples than the rank itself would read",
                "use loader_workers=0, or make a sample depend on its index alone",
            ),
        )


class _Once:
    """The same samples for every fit: reading them again may give others, which is what is asked here."""

    def __init__(self, job: Job, steps: int, collated: bool = False):
        self.job, self.steps, self.collated = job, steps, collated
        self.kept: Kept | None = None

    def __call__(self, task: Task) -> Task:
        self.kept = self.kept or read_once(self.job, self.steps, self.collated)
        if not isinstance(task.train, LoaderParts):
            return task.replace(train=self.kept, collate=joined if self.collated else task.collate)
        collate = joined if self.collated else task.train.collate
        return task.replace(train=replace(task.train, dataset=self.kept, collate=collate))


# ---------------------------------------------------------------- the settings


def _of_settings(job: Job) -> Iterator[Signed]:
    coarse = job.settings.precision != "fp32" or job.proof.coarse is not None
    if coarse or any(tensor.element_size() < 4 for tensor in job.model.parameters()):
        yield (
            True,
            Change(
                "precision",
                "in float32",
                _in_float32,
                "16-bit numbers round every part of a batch by itself",
                "use precision fp32 where results must be those of single",
            ),
        )
    if job.settings.clip is not None:
        yield (
            False,
            Change(
                "clipping",
                "without clip",
                lambda case: case.with_step(clip=None),
                "gradients are clipped by another norm",
                "leave out clip",
            ),
        )
    if job.task.schedule is not None:
        yield (
            False,
            Change(
                "schedule",
                "with a constant rate",
                lambda case: case.with_task(schedule=None),
                "the schedule gives ranks another rate than single has",
                "make the schedule a function of the number of updates alone",
            ),
        )
    if job.settings.accumulate > 1:
        yield (
            False,
            Change(
                "accumulation",
                "with accumulate=1",
                lambda case: case.with_step(accumulate=1),
                "gradients of several steps are summed with other weights",
                "use a larger batch in place of accumulate",
            ),
        )


def _in_float32(case: Case) -> Case:
    task = with_model(case.task, full_precision)
    return replace(case, task=task.replace(augment=FullInput(task.augment))).with_step(precision="fp32")


# ---------------------------------------------------------------- the loss


def _of_the_loss(job: Job) -> Iterator[Signed]:
    mixed = job.proof.mixed is not None
    why = "the loss of a batch is not the mean over its samples, and every rank computes it for a part of the batch"
    if mixed and (weight := mean_over(job)) is not None:
        make = _on_task(lambda task: task.replace(weight=weight))
        yield True, Change("loss", f"with {in_words(weight)}", make, why, f"give the task {in_words(weight)}")
    cure = (
        'the loss is a sum: divide it by the number of samples (reduction="mean")'
        if is_a_sum(job)
        else "say what the loss is a mean over (weight=lambda target: ...), or make it a mean over samples"
    )
    stand_in = _on_task(lambda task: task.replace(loss=MeanSquare(), weight=None))
    yield mixed, Change("loss", "with a plain mean in place of the loss", stand_in, why, cure)
    yield (
        mixed,
        Change(
            "neighbours",
            "with the model called sample by sample",
            _alone(job),
            "what the model gives for a sample depends on the other samples of its batch, of which a rank has a part",
            "use a layer that looks at one sample at a time, or model_parallel, which keeps batches whole",
        ),
    )


def _alone(job: Job) -> Callable[[Case], Case]:
    """The call is fixed before the model's forward is one that takes anything."""
    return _on_task(lambda task: with_model(task.replace(call=job.calling.call), one_by_one))


# ---------------------------------------------------------------- the optimizer


def _of_the_optimizer(job: Job) -> Iterator[Signed]:
    unused = bool(job.unused)
    why = "some parameters take no part in the loss of some batches; single leaves those alone, and a rank cannot know"
    cure = "use ddp:find_unused=true, or freeze parameters that no loss reaches"
    yield unused, Change("unused", "with find_unused", _find_unused, why, cure)
    reached = _on_task(lambda task: task.replace(optimizer=EveryParameterReached(task.optimizer)))
    yield (
        unused,
        Change(
            "unused",
            "with zeros for gradients that are missing",
            reached,
            why,
            "freeze parameters that no loss reaches",
        ),
    )
    plain = partial(torch.optim.SGD, lr=_rate(job))
    yield (
        False,
        Change(
            "unknown",
            "with plain SGD",
            lambda case: case.with_task(optimizer=plain),
            "the optimizer does something else where every rank has a part of the work",
            "use SGD or Adam, or single",
        ),
    )


def _rate(job: Job) -> float:
    try:
        rate = float(job.task.optimizer(trained_parameters(job.model)).param_groups[0]["lr"])
    except Exception:
        return 0.01
    return rate if 0 < rate < 1 else 0.01
