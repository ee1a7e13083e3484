"""What a loss is a mean over, found by experiment where a task does not say.

    a pass over two samples    cross entropy was called, and divided by so many units       (mean_losses.py)
    the target                 which form gives that number: tokens, shifted ones, weights   (counted.py)
    a few other batches        the form gives theirs too, and the loss is the mean over it

It is done for every strategy alike, `single` too, which has parts where it accumulates and batches where it evaluates.
Where every sample has as many units as the next there is nothing to find: a mean over units is one over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from ...data.sources import Source, TensorSource
from ...strategies.job import Job
from .counted import Counted, at, forms
from .mean_losses import MeanCall, MeanLosses
from .passes import NOISE, Samples, Trial
from .samples import Take

TRIED, SLOW_SECONDS = 6, 2.0  # samples of the other batches; none where a pass over two takes longer
Seen = tuple[Samples, float, list[MeanCall]]  # a batch, its loss, and the calls behind it
PASSED_OVER = -100  # what torch passes over where nobody says


def find_weight(
    job: Job,
    samples: Samples,
    loss: float,
    watched: MeanLosses,
    read: Callable[[int], tuple[int, Take]],
    seconds: float,
) -> Counted | None:
    """The form that fits, or None: nothing does, or samples will do. `loss` and `watched` are of a pass over `samples`."""
    calls = watched.calls
    if watched.unknown or not calls or len({call.ignore for call in calls}) > 1:
        return None
    name = job.task.target if isinstance(job.task.target, str) else ""
    possible = list(forms(samples.target, calls[0].ignore, calls[0].class_weights, name))
    found = [form for form in possible if _fits(form, (samples, loss, calls)) and _matters(form, job, samples)]
    if not found:
        return None
    seen = [(samples, loss, calls)]
    if seconds <= SLOW_SECONDS:
        total, take = read(min(TRIED, max(job.task.batch_size, 2)))
        seen += _passes(Trial(job), [take(range(total)), *_split(take, total, 3)])
    if all(_is_the_call(batch) for batch in seen):
        return next((form for form in found if all(_fits(form, batch) for batch in seen)), None)
    if seconds > SLOW_SECONDS or total < 2:
        return None
    trial = Trial(job)
    trial.model.eval()  # without dropout and the like, parts can be compared with the whole
    (whole,) = _passes(trial, [take(range(total))])
    divided = [list(_passes(trial, _split(take, total, of))) for of in range(2, min(total, 4) + 1)]
    return next((form for form in found if all(_adds_up(form, whole, parts) for parts in divided)), None)


def _passes(trial: Trial, batches: Iterable[Samples]) -> Iterator[Seen]:
    for samples in batches:
        watched = MeanLosses()
        found = trial.run(samples, mode=watched, backward=False)
        yield samples, found.loss, watched.calls


def _split(take: Take, total: int, of: int) -> list[Samples]:
    """One part in so many of a batch, and the rest: some tokens may be shared out as samples are, but not each time."""
    first = max(1, total // of)
    return [take(places) for places in (range(first), range(first, total)) if len(places)]


def _fits(form: Counted, batch: Seen) -> bool:
    """Whether every call divided by as many units as the form counts."""
    samples, _, calls = batch
    units = float(form(samples.target))
    return all(abs(call.units - units) <= 1e-5 * units for call in calls)


def _is_the_call(batch: Seen) -> bool:
    """Whether the loss is what one call of cross entropy gave; random numbers do not matter to that."""
    _, loss, calls = batch
    if not calls or len(calls) > 1:
        return False
    return abs(loss - calls[0].value) <= NOISE * abs(loss) or (loss != loss and not calls[0].units)


def _adds_up(form: Counted, whole: Seen, parts: list[Seen]) -> bool:
    """Whether the mean over the parts' units is the loss of the whole: it may be more than one call, or scaled."""
    if not all(_fits(form, batch) for batch in (whole, *parts)):
        return False
    counted = [(loss, float(form(samples.target))) for samples, loss, _ in parts]
    total = sum(units for _, units in counted)
    mean = sum(loss * units for loss, units in counted if units) / total if total else float("nan")
    return abs(mean - whole[1]) <= 10 * NOISE * abs(mean)


def _matters(form: Counted, job: Job, samples: Samples) -> bool:
    """Whether some samples have more units than others, or may have: not all of a Dataset can be looked at."""
    if not isinstance(job.train, TensorSource):
        entries = at(samples.target, form.path)
        chosen = form.class_weights is not None or form.ignore != PASSED_OVER or entries.dim() > 1
        return chosen or bool((entries == form.ignore).any())
    in_memory: list[Source | None] = [job.train, job.test]
    blocks = chain.from_iterable(
        form.per_sample(source.target) for source in in_memory if isinstance(source, TensorSource)
    )
    first = next(blocks)
    return any(bool((block != first[0]).any()) for block in chain([first], blocks))


def suggestion(whole: tuple[Any, float], parts: list[tuple[Any, float]]) -> str | None:
    """A line to copy, where a form fits."""
    form = fitting(whole, parts)
    return None if form is None else form.line()


def fitting(whole: tuple[Any, float], parts: list[tuple[Any, float]]) -> Counted | None:
    """A form with which the losses of (target, loss) parts come to that of the whole, if there is one."""
    for ignore in (PASSED_OVER, 0, -1, 255):
        for form in forms(whole[0], ignore):
            units = [float(form(target)) for target, _ in parts]
            if not sum(units):
                continue
            mean = sum(loss * number for (_, loss), number in zip(parts, units, strict=True) if number) / sum(units)
            if abs(mean - whole[1]) <= 10 * NOISE * abs(mean):  # false for what is not a number
                return form
    return None
