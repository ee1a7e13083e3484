"""What is tried before a fit starts: one pass over two samples, and the proof of exactness over a few more.

It works on copies, so that nothing it does reaches the caller or the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import process_time
from typing import Any

import torch
from torch import nn

from ...data import nest
from ...data.process_state import seeded
from ...errors import BadInput
from ...model.call_choice import refuse_wrong_call
from ...model.layout import channels_last_may_pay, channels_last_pays, lay_channels_last
from ...model.wide_products import counted_products
from ...strategies.job import Job, Proof
from .find_weight import find_weight
from .mean_losses import MeanLosses
from .passes import Samples, Trial, unused_in
from .prove import prove
from .refusals import check_class_targets, check_same_parameters, check_weight, check_without_target
from .samples import read_samples

SHARDS = 4  # into which a batch may be cut: its parts should still gain by what is chosen for the whole


def probe(job: Job, devices: Sequence[torch.device], any_layout: bool = True, divided: bool = True) -> None:
    """Refuse targets and losses that cannot work, choose how images lie in memory, and find out what would keep a
    strategy that divides the work (`divided`) from training the same model as `single`.

    What fails here for any other reason is left to the ranks, which name the step and phase.
    """
    trial, samples = Trial(job), _two_samples(job)
    check, read = partial(_check, job, trial, dict(trial.model.named_parameters())), partial(read_samples, job)
    check_weight(job.weight, samples.target, samples.count)
    began, watched = process_time(), MeanLosses()
    try:
        with counted_products() as products:
            found = trial.run(samples, check=check, mode=watched)
    except BadInput:
        raise
    except Exception:  # two samples may be too few for it; if it is anything else, the ranks will name step and phase
        refuse_wrong_call(job.calling.call, partial(_call, job, samples))
        job.proof = prove(job, read, 0.0) if divided else job.proof
        return
    seconds = process_time() - began
    if job.weight is None:
        with suppress(Exception):  # whatever fails here fails in the proof too, or on the ranks
            job.weight = find_weight(job, samples, found.loss, watched, read, seconds)
    job.proof = Proof(unused=unused_in(found), reseeds=bool(found.moved - {"torch"}))
    if not job.settings.compile and {trial.place.type, *(device.type for device in devices)} == {"cpu"}:
        single_precision = job.settings.precision == "fp32"
        job.wide_products = single_precision and products.pay(job.task.batch_size / SHARDS / samples.count)
        if any_layout:
            _choose_layout(job, trial.input_of(samples), samples.target)
    if divided:
        job.proof = prove(job, read, seconds)


def try_to_evaluate(job: Job, device: torch.device) -> None:
    """For an evaluation without a fit: what the loss is a mean over, and on CPU the layout and products of a fit."""
    with suppress(Exception):  # the evaluation will say what is wrong
        trial, watched, samples = Trial(job), MeanLosses(), _two_samples(job)
        began = process_time()
        with counted_products() as products:
            found = trial.run(samples, mode=watched, backward=False)
        if job.weight is None:
            seconds = process_time() - began
            job.weight = find_weight(job, samples, found.loss, watched, partial(read_samples, job), seconds)
        if {trial.place.type, device.type} == {"cpu"}:
            job.wide_products = products.pay((job.task.eval_batch_size or job.task.batch_size) / samples.count)
            _choose_layout(job, trial.input_of(samples), samples.target)


@torch.no_grad()
def _call(job: Job, samples: Samples, call: str) -> None:
    trial = Trial(job)
    with seeded(job.task.seed):
        replace(trial.calling, call=call).output(trial.model, trial.input_of(samples))


def _two_samples(job: Job) -> Samples:
    try:
        with seeded(job.task.seed):
            input, target = job.example()
    except BadInput:
        raise
    except Exception as problem:
        raise BadInput(f"task.train: sample 0 cannot be read: {type(problem).__name__}: {problem}") from problem
    count = nest.count(input)
    return Samples(input, target, torch.arange(count, dtype=torch.int64), count)


def _check(job: Job, trial: Trial, before: dict[str, nn.Parameter], output: Any, target: Any) -> None:
    check_same_parameters(before, dict(trial.model.named_parameters()))
    check_without_target(trial.calling, output, target)
    check_class_targets(job, output, target)


def _choose_layout(job: Job, input: Any, target: Any) -> None:
    """Lay the model's images out with channels last, where its layers are faster so on CPU."""
    if not channels_last_may_pay(job.model):
        return
    model, calling, _ = job.copies()
    if channels_last_pays(model, lambda model: calling.loss_of(calling.output(model, input), target)):
        job.model = lay_channels_last(job.model)
        job.channels_last = True
