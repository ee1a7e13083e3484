"""findings(): what is wrong with a task itself, under any strategy, found by looking at it and by a few steps of it.

    looked at     the optimizer's parameters and the schedule's rates; modes and frozen layers; samples read twice, rows of
                  the test set that are in the training set (finding_data.py)
    tried         a few updates on one batch in this process: a loss that is not finite or never changes, targets that the
                  output has no place for, weights that no update reaches

A finding is an observation with its figures, and advice; whether it was meant is for the reader to say. Frozen layers
(requires_grad=False) and layers in eval mode are meant.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

import torch
from torch import nn

from ..data.process_state import seeded
from ..errors import BadInput
from ..model.modes import comes_in_eval, listed, wholly_in_eval
from ..model.torch_internals import BATCHNORMS
from ..strategies.job import Job, StepSettings, trained_parameters
from ..task import Task
from ..training.build import build
from ..training.proof.passes import Pass, Samples, Trial
from ..training.proof.refusals import check_class_targets
from ..training.proof.samples import read_samples
from ..training.task_notes import CONSTANT, in_words_gone, in_words_not_given, not_given, rate_gone
from .finding_data import Finding, data_findings

UPDATES, SAMPLES, BATCHES, SECONDS = 6, 32, 3, 1.0  # of the trial
FEW, SLOW = 4, 0.2  # samples, where the forward pass over a batch takes longer than this many seconds
WALK_SECONDS = 1.0  # through the schedule
MOVES = 1e-5  # of the loss: what two modes must differ by


def findings(task: Task) -> list[dict[str, str]]:
    """Findings as {"name", "message", "advice"}, in no more than a few seconds; empty for a task nothing stands out of."""
    job = build(task, StepSettings())
    given = _given_in_eval(task)
    found: list[Finding] = []
    looks: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: _rate(job),
        lambda: _modes(job, given),
        lambda: _frozen_norms(job),
        lambda: _trial(job),
        lambda: data_findings(job),
    )
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        for look in looks:
            with suppress(Exception):  # what fails here fails in a fit, which names step and phase
                found += look()
    return [finding._asdict() for finding in found]


# ---------------------------------------------------------------- the recipe


def _rate(job: Job) -> Iterator[Finding]:
    gone = rate_gone(job.task, trained_parameters(job.model), job.total_updates, WALK_SECONDS)
    if gone is not None:
        advice = (
            "count in updates: step_size = epochs x updates per epoch, or build it from the total that schedule gets"
        )
        yield Finding("rate", _sentence(in_words_gone(*gone)), advice)


# ---------------------------------------------------------------- modes


def _given_in_eval(task: Task) -> bool:
    """Whether the whole model comes in eval mode, chosen by somebody."""
    with seeded(task.seed):
        model = task.model if isinstance(task.model, nn.Module) else task.model()
    return isinstance(model, nn.Module) and wholly_in_eval(model) and not comes_in_eval(model)


def _modes(job: Job, in_eval: bool) -> Iterator[Finding]:
    """Eval mode that training overrides, or keeps for layers that are trained."""
    if in_eval and _modes_differ(job):
        message = "The model was given in eval mode, but training puts all of it into training mode."
        advice = "put single layers into eval mode to keep them there (model.train(), then layer.eval())"
        yield Finding("eval_mode", message, advice)
    kept = [
        name
        for name, module in job.model.named_modules()
        if "train" in vars(module) and any(True for _ in module.children()) and trained_parameters(module)
    ]
    if kept and _modes_differ(job):
        message = f"{listed(kept)} stays in eval mode as given (no dropout, fixed statistics), although its weights are trained."
        yield Finding("eval_mode", message, "call train() on it in the model's factory if that was not meant")


def _modes_differ(job: Job) -> bool:
    """Whether some module computes something else in training, found by a pass in either mode."""
    _, take = read_samples(job, 8)
    few, outputs = take(range(min(8, len(job.train)))), []
    for mode in (True, False):
        trial = Trial(job)
        for module in trial.model.modules():
            vars(module).pop("train", None)
            vars(module).pop("forward", None)  # the trial's BatchNorm with fixed statistics
        trial.model.train(mode)
        outputs.append(trial.run(few, backward=False).loss)
    return abs(outputs[0] - outputs[1]) > MOVES * max(map(abs, outputs))


def _frozen_norms(job: Job) -> Iterator[Finding]:
    """BatchNorm whose weights are frozen while its running statistics go on changing."""
    names = [
        f'{type(module).__name__} "{name}"'
        for name, module in job.model.named_modules()
        if isinstance(module, BATCHNORMS) and module.training and module.track_running_stats
        and (held := list(module.parameters())) and not any(parameter.requires_grad for parameter in held)
    ]  # fmt: skip
    if names:
        one = len(names) == 1
        message = (
            f"The weights of {listed(names)} are frozen, but {'its' if one else 'their'} running statistics are updated with "
            "every batch."
        )
        yield Finding(
            "frozen_batchnorm", message, f"call eval() on {'it' if one else 'them'} too: it stays in eval mode"
        )


# ---------------------------------------------------------------- a few updates


def _trial(job: Job) -> Iterator[Finding]:
    """Some updates on one batch, at the optimizer's own rate."""
    count = min(SAMPLES, max(2, job.task.batch_size))
    total, take = read_samples(job, BATCHES * count)
    trial, began = Trial(job), monotonic()
    if (wrong := _targets(job, trial, take(range(min(count, total))))) is not None:
        yield wrong
        return
    if monotonic() - began > SLOW:
        count = min(count, FEW)
    batches = [take(range(start, min(start + count, total))) for start in range(0, total, count)][:BATCHES]
    losses, reached = _updates(job, trial, batches[0])
    if not math.isfinite(losses[0]):
        advice = "look for a logarithm or a division of zero, and for samples that are not finite"
        yield Finding("loss", f"The loss is {losses[0]} on the first batch.", advice)
        return
    yield from _unchanged(job, trial, batches[1:], reached, losses)


def _updates(job: Job, trial: Trial, batch: Samples) -> tuple[list[float], set[str]]:
    """The losses before each update, and the parameters that some gradient other than zero reached."""
    named = trained_parameters(trial.model)
    optimizer, began = job.task.optimizer(named), monotonic()
    losses: list[float] = []
    reached: set[str] = set()
    while len(losses) < UPDATES and monotonic() - began < SECONDS:
        found = trial.run(batch)
        losses.append(found.loss)
        reached |= _reached(found)
        for name, parameter in named:
            parameter.grad = found.gradients[name]
        try:
            optimizer.step()
        except Exception:  # it wants gradients of another kind, sparse ones say
            break
        optimizer.zero_grad()
    return losses, reached


def _reached(found: Pass) -> set[str]:
    return {
        name for name, gradient in found.gradients.items() if gradient is not None and bool(gradient.count_nonzero())
    }


def _unchanged(
    job: Job, trial: Trial, batches: list[Samples], reached: set[str], losses: list[float]
) -> Iterator[Finding]:
    """Weights that no update changes, and a loss that no update changes."""
    named = trained_parameters(trial.model)
    left_out = not_given(job.task, named)
    if left_out:
        advice = "hand them to it, or freeze them on purpose (requires_grad=False)"
        yield Finding("frozen_weights", _sentence(in_words_not_given(left_out)), advice)
    if len(losses) > 2 and max(losses) - min(losses) <= CONSTANT * abs(losses[0]) and losses[0] != 0:
        message = f"The loss stays {losses[0]:.6g} over {len(losses)} updates on one batch: no update changes it."
        advice = "look for detach(), argmax or rounding between the weights and the loss, and for a rate of zero"
        yield Finding("loss", message, advice)
        return
    for batch in batches:  # parts of a model may be for some samples only
        if all(name in reached for name, _ in named):
            break
        reached |= _reached(trial.run(batch))
    still = [name for name, _ in named if name not in reached and name not in left_out]
    if still:
        message = (
            f"No gradient reaches {listed(still)}: training leaves {'it' if len(still) == 1 else 'them'} unchanged."
        )
        advice = (
            "look for detach(), no_grad() or .data on the way to the loss; where it is not needed, take it out or freeze it "
            "(requires_grad=False)"
        )
        yield Finding("frozen_weights", message, advice)


def _targets(job: Job, trial: Trial, batch: Samples) -> Finding | None:
    """Targets that the output has no place for."""
    wrong: list[str] = []

    def check(output: Any, target: Any) -> None:
        try:
            check_class_targets(job, output, target)
        except BadInput as problem:
            wrong.append(str(problem))
            raise

    try:
        trial.run(batch, check=check, backward=False)
    except IndexError as problem:  # cross entropy inside a function of the user's
        if "out of bounds" in str(problem):
            wrong.append(str(problem).splitlines()[0])
    except BadInput:
        if not wrong:
            raise
    if not wrong:
        return None
    return Finding("targets", _sentence(wrong[0]), "give the output one place per class, or number the classes from 0")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
