"""What is tried before a fit starts: one pass over two samples, and the proof of exactness over a few more.

It works on copies, so that nothing it does reaches the caller or the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import process_time
from typing import Any

import torch

from ...data import nest
from ...data.random_state import drawn_from, generators, seeded
from ...errors import BadInput
from ...model.layout import channels_last_pays, lay_channels_last
from ...strategies.job import Job, Proof, trained_parameters
from .prove import prove
from .refusals import check_class_targets, check_loss, check_same_parameters
from .samples import read_samples


def probe(job: Job, devices: Sequence[torch.device], any_layout: bool = True, divided: bool = True) -> None:
    """Refuse targets and losses that cannot work, choose how images lie in memory, and find out what would keep a
    strategy that divides the work (`divided`) from training the same model as `single`.

    What fails here for any other reason is left to the ranks, which name the step and phase.
    """
    try:
        with seeded(job.task.seed):
            input, target = job.example()
    except BadInput:
        raise
    except Exception as problem:
        raise BadInput(f"task.train: sample 0 cannot be read: {type(problem).__name__}: {problem}") from problem
    model, loss_of, augment = job.copies()
    model.train()
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    input, target = (nest.each(value, lambda tensor: tensor.to(place, copy=True)) for value in (input, target))
    began, failed = process_time(), False
    with seeded(job.task.seed):
        before = generators()
        try:
            if augment is not None:
                input = augment(input, torch.arange(nest.count(input), dtype=torch.int64, device=place))
            named = dict(model.named_parameters())
            output = model(input)
            check_same_parameters(named, dict(model.named_parameters()))
            check_class_targets(job, output, target)
            loss = loss_of(output, target)
            check_loss(loss)
            loss.backward()
        except BadInput:
            raise
        except Exception:
            failed = True
        drawn = drawn_from(before, generators())
    seconds = process_time() - began
    if failed:  # two samples may be too few for it; if it is anything else, the ranks will name step and phase
        job.proof = prove(job, partial(read_samples, job), 0.0) if divided else job.proof
        return
    unused = frozenset(name for name, parameter in trained_parameters(model) if parameter.grad is None)
    job.proof = Proof(unused=unused, reseeds=bool(drawn - {"torch"}))
    if any_layout and not job.settings.compile and {place.type, *(device.type for device in devices)} == {"cpu"}:
        _choose_layout(job, input, target)
    if divided:
        job.proof = prove(job, partial(read_samples, job), seconds)


def _choose_layout(job: Job, input: Any, target: Any) -> None:
    """Lay the model's images out with channels last, where its layers are faster so on CPU."""
    model, loss_of, _ = job.copies()
    if channels_last_pays(model, lambda model: loss_of(model(input), target)):
        job.model = lay_channels_last(job.model)
        job.channels_last = True
