"""What a fit notes about its task where that costs nothing: a recipe that cannot be what was meant, under any strategy.

    before    parameters that the optimizer was not given; a rate that is gone for most of the run
    after     weights that are what they were; a loss that never changed

Each is a fact of this fit, told in a line; nothing is refused for it. `manyhands verify` asks more (studies/findings.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

from ..model.modes import listed
from ..model.optimizers import Named, needs_figure, stand_in
from ..strategies.job import Job, trained_parameters
from ..task import Task

GONE = 1e-6  # of the largest rate: no weight in float32 is moved by it
MOST = 0.5  # of the updates
SECONDS = 0.05  # that walking through a schedule may take in a fit
FEWEST_UPDATES = 10  # before anything is said about weights: a rate may begin at zero
CONSTANT = 1e-7  # relative


def notes_before(job: Job) -> list[str]:
    trained = trained_parameters(job.model)
    left_out, gone = not_given(job.task, trained), rate_gone(job.task, trained, job.total_updates, SECONDS)
    return [note for note in (left_out and in_words_not_given(left_out), gone and in_words_gone(*gone)) if note]


def notes_after(job: Job, weights: Mapping[str, Tensor], updates: int, losses: Sequence[float | None]) -> list[str]:
    """`weights` are those after training; the job still has those before."""
    if updates < FEWEST_UPDATES:
        return []
    still = unchanged(job.model, weights)
    known = set(not_given(job.task, trained_parameters(job.model)))
    still = [name for name in still if name not in known]
    notes = [f"training left {listed(still)} as {'it was' if len(still) == 1 else 'they were'}"] if still else []
    if (value := constant(losses)) is not None:
        notes.append(f"the loss was {value:.6g} in every step: it does not depend on what is trained")
    return notes


# ---------------------------------------------------------------- the optimizer and its rate


def not_given(task: Task, trained: Named) -> list[str]:
    """Parameters that are to be trained but are in no group of the optimizer."""
    stands = _stand_ins(trained)
    optimizer = task.optimizer(stands)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [name for name, parameter in stands if id(parameter) not in held]


def in_words_not_given(names: list[str]) -> str:
    return (
        f"the optimizer was not given {listed(names)}: training leaves {'it' if len(names) == 1 else 'them'} unchanged"
    )


def rate_gone(task: Task, trained: Named, updates: int, seconds: float) -> tuple[int, int] | None:
    """After which update the rate is gone, and of how many looked at, where it is so for most of them.

    Rates of all groups, the largest counts. A schedule that goes by a figure, or takes long to walk through, is not judged
    beyond what was seen.
    """
    if task.schedule is None or updates < FEWEST_UPDATES:
        return None
    optimizer = task.optimizer(_stand_ins(trained))
    schedule = task.schedule(optimizer, updates)
    if needs_figure(schedule):
        return None
    rates, began = [_rate(optimizer)], process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an optimizer that was not stepped, which would load torch's compiler
        while len(rates) < updates and process_time() - began < seconds:
            schedule.step()
            rates.append(_rate(optimizer))
    gone = GONE * max(rates)
    low = [rate <= gone for rate in rates]
    if gone > 0 and sum(low) > MOST * len(low) and low[-1]:
        return len(low) - low[::-1].index(False) if False in low else 0, len(low)
    return None


def in_words_gone(after: int, of: int) -> str:
    return (
        f"the learning rate is below a millionth of its start from update {after:,} of {of:,} on: a schedule is stepped once "
        "per update, not per epoch"
    )


def _rate(optimizer: torch.optim.Optimizer) -> float:
    return max(float(group["lr"]) for group in optimizer.param_groups)


def _stand_ins(trained: Named) -> list[tuple[str, nn.Parameter]]:
    """Parameters of the right shapes without their memory."""
    return [(name, stand_in(p, torch.zeros((), dtype=p.dtype).expand(p.shape))) for name, p in trained]


# ---------------------------------------------------------------- what training has done


def unchanged(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Weights of a matrix or more that are to be trained and are, in every number, what they were.

    Vectors are passed over: the gradient of a bias in front of a BatchNorm is zero up to rounding, and nothing is wrong.
    """
    return [
        name
        for name, before in trained_parameters(model)
        if before.dim() > 1 and name in weights and _equal(before.detach(), weights[name])
    ]


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.numel() > 0 and bool(torch.equal(one.cpu(), other.cpu().to(one.dtype)))


def constant(losses: Sequence[Any]) -> float | None:
    """The loss of every step, where it is the same in all."""
    known = [loss for loss in losses if loss is not None]
    if len(known) < FEWEST_UPDATES or max(known) - min(known) > CONSTANT * abs(known[0]):
        return None
    return float(known[0])
