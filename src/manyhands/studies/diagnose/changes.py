"""Changes to try: each takes one thing away or sets it otherwise, and everything else stays as it is.

A change that `measures` something takes it away, to see what it costs: nobody would train with batches that repeat. A change
with a `command` can be made for good. What the phases of a step leave no room for is not tried: reading that takes 2 % of
the step cannot be worth more than 2 %.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from ...record.run import Run
from ...strategies import make_strategy
from ...strategies.contract import Strategy
from ..slices import Variant
from .job import Diagnosed

ROOM = 0.08  # of the step that a change could win at most, below which it is not tried
KEPT = 4  # batches
AHEAD = 8  # steps of a slice per worker, each of which reads two batches ahead
NEVER = 1 << 20  # steps
LARGER = 4  # times the batch
COMPILE_BUDGET = 240  # seconds below which torch.compile is not tried


@dataclass(frozen=True)
class Change:
    """One thing that is otherwise."""

    variant: Variant
    measures: str | None = None  # the bottleneck whose cost it shows
    command: str | None = None  # what to type to have it
    training: str | None = None  # what it changes about the training itself

    @property
    def label(self) -> str:
        return self.variant.label


def changes(job: Diagnosed, base: Run, budget: float) -> tuple[list[Change], list[dict[str, str]]]:
    """What is worth a try after seeing one slice of the job, the simplest first, and what is not, with the reason."""
    tried: list[Change] = []
    skipped: list[dict[str, str]] = []
    for change in _all(job, _Shares(base), base, budget):
        if isinstance(change, Change):
            tried.append(change)
        else:
            skipped.append(change)
    return tried, skipped


class _Shares:
    """Phases as parts of the step."""

    def __init__(self, base: Run):
        self.phases = {name: value or 0.0 for name, value in (base.phases_ms or {}).items()}
        self.step = sum(self.phases.values()) or 1.0

    def of(self, *names: str) -> float:
        return sum(self.phases.get(name, 0.0) for name in names) / self.step


def _not(change: str, reason: str) -> dict[str, str]:
    return {"change": change, "reason": reason}


def _all(job: Diagnosed, share: _Shares, base: Run, budget: float) -> Iterator[Change | dict[str, str]]:
    yield from _reading(job, share)
    yield from _augmenting(job, share)
    yield from _threads(job, share, base)
    yield from _ranks(job, share)
    yield from _strategy(job, share)
    yield from _updating(job, share)
    yield from _computing(job, share, base, budget)


# ---------------------------------------------------------------- reading


def _reading(job: Diagnosed, share: _Shares) -> Iterator[Change | dict[str, str]]:
    crowded = job.workers * job.processes > job.cores
    if job.in_memory:
        yield _not("loader workers", "the data is in memory")
        return
    if share.of("load") < ROOM and not crowded:
        yield _not("loader workers", f"reading takes {share.of('load'):.0%} of the step")
        return
    yield Change(job.variant("batches kept in memory", step={"keep_batches": KEPT}), measures="loading")
    if job.dataset is not None and (frozen := _with_frozen_transform(job.dataset)) is not None:
        yield Change(job.variant("transform made once", task={"train": frozen}), measures="augmentation")
    for workers in _numbers_of_workers(job):
        variant = job.variant(_amount(workers, "loader worker"), step={"loader_workers": workers})
        variant.fewest = AHEAD * workers + variant.fewest  # the first steps live on what was read before they began
        yield Change(
            variant,
            measures="cores" if workers < job.workers and crowded else None,
            command=job.command(loader_workers=workers),
        )


def _numbers_of_workers(job: Diagnosed) -> list[int]:
    fitting = max(1, job.cores // job.processes)
    numbers = [1] if job.stream else [fitting, 2, 4, 8]
    if job.workers:
        numbers.append(0)
    return sorted({number for number in numbers if number != job.workers and number * job.processes <= 16})


def _with_frozen_transform(dataset: Dataset) -> Dataset | None:
    """A copy whose `transform` gives what it gave the first time; None where there is none (that can be copied)."""
    holder = dataset
    while not callable(getattr(holder, "transform", None)) and isinstance(getattr(holder, "dataset", None), Dataset):
        holder = holder.dataset  # type: ignore[attr-defined]  # a Subset, say
    if not callable(getattr(holder, "transform", None)):
        return None
    try:
        copied = copy.copy(dataset)
        place, source = copied, dataset
        while source is not holder:
            place.dataset = copy.copy(source.dataset)  # type: ignore[attr-defined]
            place, source = place.dataset, source.dataset  # type: ignore[attr-defined]
        place.transform = _Once(holder.transform)  # type: ignore[attr-defined]
    except Exception:  # slots, properties, files that are open: then it stays unknown
        return None
    return copied


class _Once:
    """A function that is called once; what it gave is given again."""

    def __init__(self, function: Any):
        self.function, self.known, self.value = function, False, None

    def __call__(self, *given: Any, **named: Any) -> Any:
        if not self.known:
            self.value, self.known = self.function(*given, **named), True
        return self.value


def _augmenting(job: Diagnosed, share: _Shares) -> Iterator[Change | dict[str, str]]:
    if job.task.augment is None:
        return
    if share.of("augment") < ROOM:
        yield _not("no augmentation", f"augmentation takes {share.of('augment'):.0%} of the step")
        return
    yield Change(job.variant("no augmentation", task={"augment": None}), measures="augmentation")


# ---------------------------------------------------------------- threads and ranks


def _threads(job: Diagnosed, share: _Shares, base: Run) -> Iterator[Change | dict[str, str]]:
    now = base.threads or 1
    if base.device != "cpu":
        return
    if share.of("augment", "forward", "backward", "update", "other") < ROOM:
        yield _not("more or fewer threads", "hardly anything is computed")
        return
    fair = max(1, job.cores // job.processes)
    numbers = {fair, 1} | ({now // 2} if now > 2 else set())
    for threads in sorted(numbers - {now}, reverse=True):
        yield Change(
            job.variant(f"{_amount(threads, 'thread')} per rank", threads=threads),
            measures="threads",
            command=job.command(threads=threads),
        )


def _ranks(job: Diagnosed, share: _Shares) -> Iterator[Change | dict[str, str]]:
    if job.ranks == 1:
        return
    if job.processes > job.cores and not _cut(job.strategy) and job.cores > 1:
        fewer = _with_ranks(job.strategy, job.cores)
        if fewer is not None:
            label = f"{_amount(job.cores, 'rank')}, as many as cores"
            yield Change(
                job.variant(label, strategy=fewer, threads=None),
                measures="cores",
                command=job.command(fewer, threads=None),
            )
    single = make_strategy("single")
    yield Change(
        job.variant("one rank with all threads", strategy=single, threads=None),
        command=job.command(single, threads=None),
    )


def _with_ranks(strategy: Strategy, ranks: int) -> Strategy | None:
    try:
        return replace(strategy, ranks=ranks)  # type: ignore[type-var]
    except Exception:  # options that fix the number of ranks
        return None


def _cut(strategy: Strategy) -> bool:
    return strategy.name in ("pipeline", "model_parallel", "hybrid")


# ---------------------------------------------------------------- the strategy


def _strategy(job: Diagnosed, share: _Shares) -> Iterator[Change | dict[str, str]]:
    strategy, ranks = job.strategy, job.ranks
    talking = share.of("communication", "wait")
    if strategy.name == "single":
        if job.cores > 1:
            yield _other(job, "ddp", job.cores)
        return
    if strategy.name == "data_parallel":
        yield _other(job, "ddp", ranks, measures="launch")
        return
    if strategy.name == "locked":
        yield _other(job, "hogwild", ranks, measures="lock", training="ranks write without waiting for each other")
        return
    if _cut(strategy):
        yield from _cutting(job)
        yield _other(job, "ddp", ranks)
        return
    if strategy.name == "hogwild":
        return
    waiting = talking + (share.of("update") if strategy.name == "parameter_server" else 0.0)
    if waiting < ROOM:
        yield _not("no synchronisation", f"ranks talk and wait for {waiting:.0%} of the step")
        return
    if strategy.name != "local_sgd":
        apart = make_strategy(f"local_sgd:period={NEVER}", ranks)
        yield Change(job.variant("no synchronisation", strategy=apart), measures="communication")
        seldom = make_strategy("local_sgd:period=8", ranks)
        yield Change(
            job.variant("an average every 8 updates", strategy=seldom),
            command=job.command(seldom),
            training="ranks train apart between averages",
        )
    if getattr(strategy, "bucket_mb", 25.0) != 25.0:
        wide = replace(strategy, bucket_mb=25.0)  # type: ignore[type-var]
        yield Change(job.variant("buckets of 25 MB", strategy=wide), command=job.command(wide))
    elif strategy.name == "ddp" and job.parameter_bytes > 10e6:
        small = replace(strategy, bucket_mb=4.0)  # type: ignore[type-var]
        yield Change(job.variant("buckets of 4 MB", strategy=small), command=job.command(small))
    if strategy.name == "parameter_server":
        yield _other(job, "ddp", ranks)
    yield _other(job, "hogwild", ranks, training="ranks write without waiting for each other")


def _other(job: Diagnosed, name: str, ranks: int, **about: Any) -> Change:
    strategy = make_strategy(name, ranks)
    threads = None if ranks != job.ranks else job.settings.threads
    return Change(
        job.variant(f"{name} with {_amount(ranks, 'rank')}", strategy=strategy, threads=threads),
        command=job.command(strategy, threads=threads),
        **about,
    )


def _cutting(job: Diagnosed) -> Iterator[Change]:
    strategy = job.strategy
    options: list[dict[str, Any]] = []
    if getattr(strategy, "balance", "time") != "time":
        options.append({"balance": "time"})
    chunks = getattr(strategy, "chunks", None)
    if isinstance(chunks, int):
        options += [{"chunks": number} for number in (2 * chunks, chunks // 2) if number >= 1]
    for option in options:
        other = replace(strategy, **option)  # type: ignore[type-var]
        [(name, value)] = option.items()
        label = "layers cut by their time" if name == "balance" else f"{value} chunks"
        yield Change(job.variant(label, strategy=other), command=job.command(other))


# ---------------------------------------------------------------- the update, and what is computed


def _updating(job: Diagnosed, share: _Shares) -> Iterator[Change | dict[str, str]]:
    update, talking = share.of("update"), share.of("communication", "wait")
    accumulate = job.settings.step.accumulate
    if update < ROOM and talking < ROOM:
        yield _not("fewer updates", f"updates take {update:.0%} of the step")
        return
    if update >= ROOM and job.ranks == 1:
        yield Change(job.variant("no updates", step={"accumulate": NEVER}), measures="update")
    elif update >= ROOM and job.strategy.name != "parameter_server":  # whose updates are made by servers
        plain = partial(torch.optim.SGD, lr=1e-6)
        yield Change(job.variant("plain SGD", task={"optimizer": plain, "schedule": None}), measures="update")
    if not _cut(job.strategy) or update >= ROOM:
        yield Change(
            job.variant(f"an update every {8 * accumulate} steps", step={"accumulate": 8 * accumulate}),
            command=job.command(accumulate=8 * accumulate),
            training="the gradient of 8 times as many samples goes into an update",
        )


def _computing(job: Diagnosed, share: _Shares, base: Run, budget: float) -> Iterator[Change | dict[str, str]]:
    busy = share.of("forward", "backward", "other", "update", "communication")
    size = job.task.batch_size * LARGER
    if busy < 2 * ROOM:
        yield _not("a larger batch", "hardly anything is computed")
    elif size > job.samples:
        yield _not("a larger batch", f"there are only {job.samples:,} samples")
    else:
        yield Change(
            job.variant(f"batches of {size}", task={"batch_size": size}),
            measures="launch",
            command=job.command(batch_size=size),
            training="the gradient of 4 times as many samples goes into an update: scale the rate, and check the accuracy",
        )
    if share.of("forward", "backward") < 0.5:
        return
    if job.settings.step.precision == "fp32":
        yield Change(
            job.variant("bf16", step={"precision": "bf16"}),
            command=job.command(precision="bf16"),
            training="computed with 8 bits of precision",
        )
    if job.settings.step.compile or not job.strategy.traits.compiles:
        return
    if base.device == "cpu" and budget < COMPILE_BUDGET:
        yield _not("a compiled model", f"compiling takes minutes; use --budget {COMPILE_BUDGET} or more to try it")
    else:
        yield Change(job.variant("a compiled model", step={"compile": True}), command=job.command(compile=True))


def _amount(number: int, noun: str) -> str:
    spelt = {0: "no", 1: "one"}.get(number, str(number))
    return f"{spelt} {noun}{'s' * (number != 1)}"
