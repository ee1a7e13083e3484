"""The proof before the promise: would the parts of a batch train this model as the whole batch does?

A strategy that promises the weights of `single` lets every rank compute on a part of each batch and draw its own random
numbers. Whether that comes to the same is tried before the start, on a copy of the model and a few samples of the first
batch, because no list of layer classes knows what people write:

    another seed                   another loss             random numbers are drawn: dropout, sampling, skipped layers
    the same pass twice            another loss, or         something is kept between batches; after a part of the batch
                                   other buffers            the same as after the whole: every rank keeps it alike
    the batch, and its two parts   another loss or          the loss is no mean over samples, or a sample's output depends
                                   gradient                 on its neighbours

A forward pass that branches on the contents of a tensor may go another way with any batch, so more batches are tried then.
What differs in float32 by more than rounding explains is tried again in float64. BatchNorm is known by its class and may be
joined over ranks (sync_batchnorm), so it runs with fixed statistics here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import process_time
from typing import Any

import torch
from torch import nn

from ...data.process_state import drawn_from, generators
from ...model.kept_state import kept_state
from ...model.trace import title
from ...strategies.job import Job, Proof
from .find_weight import suggestion
from .passes import (
    NOISE,
    Asked,
    Forced,
    Pass,
    Samples,
    Trial,
    close,
    difference,
    hooked,
    mean_loss,
    same_loss,
    unused_in,
)
from .rounding import rounding_alone
from .samples import Take

SAMPLES = ((0.02, 16), (0.1, 8), (2.0, 5))  # how many are tried where a pass over two takes at most so many seconds
BRANCH_SAMPLES, BRANCH_SECONDS = 48, 1.0  # where the forward pass branches on what it is given
LATER_CALLS = 6  # with the same batch, of a model that keeps something in its attributes
DOUBT = 2e-4  # differences that nothing but a difference explains
NOISE_64 = 1e-7  # differences that float64 explains
COARSE_NOISE = 0.05  # differences that 16 bits explain


def prove(job: Job, read: Callable[[int], tuple[int, Take]], seconds: float) -> Proof:
    """Try the job's model and loss, and add to what its proof says so far.

    `read` reads so many samples if there are as many. `seconds` of processor time are what a pass over two of them takes.
    """
    known = job.proof
    try:
        trial, asked = Trial(job), Asked()
        if seconds > SAMPLES[0][0]:  # a first pass may have loaded half a library
            seconds = _timed(Trial(job), read(2)[1]([0, 1]))
        affordable = [count for limit, count in SAMPLES if seconds <= limit]
        if not affordable:
            return replace(known, unchecked=f"a pass over two samples takes {seconds:.1f} s")
        total, take = read(min(affordable[0], max(job.task.batch_size, 2)))
        whole = take(range(total))
        first = trial.run(whole, mode=asked)
    except Exception as problem:  # the ranks will name step and phase
        return replace(known, unchecked=f"{type(problem).__name__}: {problem}".splitlines()[0])
    known = replace(known, unused=known.unused | unused_in(first), coarse=asked.coarse)
    known = _find_state(trial, whole, take([0, min(1, total - 1)]), first, known)
    known = _find_randomness(job, trial, whole, first, known)
    if total < 2 or known.random:  # then nothing can be compared, and nothing is promised
        return known
    known = _compare_parts(job, trial, whole, _halves(take, range(total)), known, first)
    # cross entropy over some of the targets may divide one batch as samples are divided, and not the next
    doubtful = job.weight is None and not all(call.plain for call in asked.calls)
    if (asked.contents or doubtful) and not known.mixed and not known.state:
        known = _compare_more(job, trial, *read(BRANCH_SAMPLES), known)
    return known


def _timed(trial: Trial, samples: Samples) -> float:
    began = process_time()
    trial.run(samples)
    return process_time() - began


def _halves(take: Take, places: Sequence[int]) -> list[Samples]:
    """In two parts: unequal, and even where it can be, for some losses take samples in pairs."""
    first = 2 * (len(places) // 6) or len(places) // 2
    return [take(places[:first]), take(places[first:])]


# ---------------------------------------------------------------- what is kept between batches


def _find_state(trial: Trial, whole: Samples, few: Samples, first: Pass, known: Proof) -> Proof:
    """Compare what the model holds before and after a call, and what it answers to the same batch again."""
    kept = kept_state(trial.model, trial.input_of(few), trial.calling.needed)
    written = [*sorted(kept.written), *(".".join(filter(None, pair)) for pair in kept.rebound.items())]
    parameters = dict(trial.model.named_parameters())
    known = replace(known, writes=tuple(name for name in written if name in parameters))
    calls = LATER_CALLS if kept.attributes else 1  # a history may be read only when it is long enough
    same = all(same_loss(first, trial.run(whole, backward=False)) for _ in range(calls))
    if not written and same:
        return known
    what = f'"{written[0]}"' if written else "an attribute of the model or of the loss"
    return replace(known, state=f"the forward pass changes {what}, which later batches see")


def _follows_batch(job: Job, whole: Samples, part: Samples) -> bool:
    """Whether what is kept of a part of a batch differs from what is kept of the whole one."""
    after_whole, after_part = Trial(job), Trial(job)
    try:
        for _ in range(LATER_CALLS):
            after_whole.run(whole, backward=False)
            after_part.run(part, backward=False)
            if not all(map(close, after_part.tensors().values(), after_whole.tensors().values())):
                return True
        return not same_loss(after_part.run(whole, backward=False), after_whole.run(whole, backward=False))
    except Exception:  # a state with a row for each sample does not fit another number of samples
        return True


# ---------------------------------------------------------------- random numbers


def _find_randomness(job: Job, trial: Trial, whole: Samples, first: Pass, known: Proof) -> Proof:
    fresh = Trial(job) if known.state else trial
    second = fresh.run(whole, seed=1, backward=bool(first.moved))
    known = replace(known, unused=known.unused | unused_in(second))
    if not first.moved and (known.state or same_loss(first, second)):
        return known
    if first.moved == {"torch"} and same_loss(first, second):
        # Numbers were drawn and changed nothing: a rare event, or one that cannot happen (a layer dropped with
        # probability 0). The smallest and the largest number that can be drawn show which.
        passes = [(Trial(job) if known.state else trial).run(whole, mode=Forced(value)) for value in (0.0, 1.0)]
        known = replace(known, unused=known.unused.union(*map(unused_in, passes)))
        if not any(found.moved for found in passes) and all(same_loss(first, found) for found in passes):
            return known
    place = _drawing_module(job, whole)
    return replace(known, random=f"random numbers (dropout and the like) are drawn in {place}")


def _drawing_module(job: Job, whole: Samples) -> str:
    """The innermost module that draws first."""
    trial, found, begun = Trial(job), [], []

    def entered(module: nn.Module, *_: Any) -> None:
        begun.append(generators())

    def left(module: nn.Module, *_: Any, name: str) -> None:
        if drawn_from(begun.pop(), generators()):
            found.append(title(trial.model, name))

    with hooked(trial.model, entered, left), suppress(Exception):
        trial.run(whole)
    return found[0] if found else "the loss"


# ---------------------------------------------------------------- the parts of a batch


def _compare_parts(
    job: Job, trial: Trial, whole: Samples, parts: Sequence[Samples], known: Proof, first: Pass
) -> Proof:
    trials = [Trial(job), Trial(job)] if known.state else [trial, trial]
    try:
        passes = [own.run(samples) for own, samples in zip(trials, parts, strict=True)]
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return replace(known, divides=f"{parts[0].count} of {whole.count} samples cannot be computed alone: {reason}")
    known = replace(known, unused=known.unused.union(*map(unused_in, passes)))
    if known.state:
        known = replace(known, follows_batch=_follows_batch(job, whole, parts[0]))
    apart = difference(first, passes)
    if apart <= _noise(known) or not _really_apart(job, whole, parts, apart):
        with suppress(Exception):  # an optimizer that cannot be tried alone is judged by its traits
            known = replace(known, rounding=rounding_alone(job, first, passes))
        return known
    return replace(known, mixed=_why_mixed(job, whole, parts, first, passes))


def _compare_more(job: Job, trial: Trial, total: int, take: Take, known: Proof) -> Proof:
    """Other batches, small ones: of those, more go different ways. Their losses alone show it."""
    began = process_time()
    for start in range(0, total - 2, 3):
        places = range(start, min(start + 6, total))
        whole, parts = take(places), _halves(take, places)
        try:
            first, *passes = [trial.run(samples, backward=False) for samples in (whole, *parts)]
        except Exception:
            continue  # parts that small are not what ranks get
        apart = difference(replace(first, gradients={}), passes)
        if apart > _noise(known) and _really_apart(job, whole, parts, apart):
            return replace(known, mixed=_why_mixed(job, whole, parts, first, passes))
        if process_time() - began > BRANCH_SECONDS:
            break
    return known


def _noise(known: Proof) -> float:
    return COARSE_NOISE if known.coarse else NOISE


def _really_apart(job: Job, whole: Samples, parts: Sequence[Samples], apart: float) -> bool:
    """Whether float64 sees the difference too. A model that cannot be computed so is judged by its size alone."""
    try:
        first, *passes = [Trial(job, double=True).run(samples) for samples in (whole, *parts)]
    except Exception:
        return apart > DOUBT
    precise = difference(first, passes)
    return precise > NOISE_64 and precise > apart / 10


def _why_mixed(job: Job, whole: Samples, parts: Sequence[Samples], first: Pass, passes: list[Pass]) -> str:
    """Where the parts go their own way: in the augmentation, in a module, in the loss or in a gradient."""
    together = Trial(job).run(whole, watch=True).outputs
    apart = [Trial(job).run(part, watch=True).outputs for part in parts]
    for name, output in together.items():
        if len(output) != whole.count or not all(name in own for own in apart):
            continue
        joined = torch.cat([own[name] for own in apart]) if len({own[name].shape[1:] for own in apart}) == 1 else output
        if joined.shape == output.shape and not close(output, joined, 1e-4):
            if name == "augment":
                return "task.augment mixes samples of a batch, and every rank has a part of each batch"
            where = title(job.model, name)
            return f"the output of {where} for a sample depends on the other samples of its batch"
    mean = mean_loss(passes)
    if abs(first.loss - mean) <= NOISE * max(abs(first.loss), abs(mean)):
        return "the gradient of a batch is not the mean over its samples (a hook on a parameter, say)"
    if job.weight is not None:
        return (
            f"the loss of a batch is not the mean over the units that weight counts ({first.loss:.6g} for "
            f"{first.units:g} units, {mean:.6g} from its parts): weight must give what the loss divides by"
        )
    return (
        f"the loss of a batch is not the mean over its samples ({first.loss:.6g} for {whole.count} samples, "
        f"{mean:.6g} from their parts): a sum, class weights, padding or pairs of samples weigh parts differently; "
        f"{_advice(job, whole, parts, first, passes)}"
    )


def _advice(job: Job, whole: Samples, parts: Sequence[Samples], first: Pass, passes: list[Pass]) -> str:
    if whole.target is None:
        keys = ', such as "labels"' if job.task.loss is None else ""
        return f"name the target (task.target{keys}), so that what the loss is a mean over can be found in it"
    line = None
    with suppress(Exception):  # targets of any kind
        pairs = [(part.target, found.loss) for part, found in zip(parts, passes, strict=True)]
        line = suggestion((whole.target, first.loss), pairs)
    if line is not None:
        return f"with {line} these samples come to the same"
    return "say what the loss is a mean over, if it is one (weight=lambda target: ...), or average over samples"
