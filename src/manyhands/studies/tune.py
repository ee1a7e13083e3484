"""tune(): the fastest settings of a job, by measurement.

One setting after the other, in the order in which they matter to each other; of each setting's values

    rung 1   default  a  b  c  d      a short slice each, in turn
    rung 2   default  a     c         the faster half goes on, with slices twice as long
    rung 3   default        c         until one or two are left: what is clearly faster stays, the smaller of equals

and at the end the chosen settings against the default, in turn again, for the gain and its interval.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..data.process_state import seeded
from ..errors import BadInput, did_you_mean
from ..record.neighbours import Neighbours
from ..strategies import make_strategy
from ..strategies.contract import Strategy
from ..strategies.job import trained_parameters
from ..task import Task
from ..training import PRELOAD
from ..training.settings import FitSettings
from ..world.engines.choose import opened
from .diagnose.job import Diagnosed, job_of
from .doctor.check import size
from .doctor.machine import free_memory
from .doctor.needs import PROCESS, Needs, needs
from .intervals import interval
from .slices import Variant, per_sample, run_rounds, speedups

SETTINGS = ("loader_workers", "threads", "bucket_mb", "chunks", "batch_size")  # in the order in which they are searched
FEWEST_SECONDS = 10.0
ROUNDS, LAST_ROUNDS = 2, 3  # of slices on a rung, and of the last comparison
FOR_THE_END = 0.25  # of the budget
ALIKE = 0.92  # of the best gain
WORTH = 1.03  # a gain that is kept: in the middle, and more than none in the worst round
MOST_MEMORY = 0.8  # of what is free
WORKERS, BUCKETS, CHUNKS, BATCHES = (0, 1, 2, 4, 8, 16), (1.0, 5.0, 25.0, 100.0), (1, 2, 4, 8, 16, 32), (0.5, 2, 4, 8)
Say = Callable[[str], None]
Values = dict[str, Any]


def tune(
    task: Task,
    strategy: str | Strategy = "single",
    settings: Sequence[str] | None = None,
    *,
    ranks: int | None = None,
    budget: float = 300.0,
    with_batch: Callable[[int], Task] | None = None,
    given: Mapping[str, Any] | None = None,
    say: Say = lambda text: None,
    **keywords: Any,
) -> dict[str, Any]:
    """Search the values of `settings` (default: all that apply but the batch size) for the fastest, within `budget` seconds.

    `with_batch` makes the task with another batch size, where its recipe has a rate for each; `given` are options of the
    task that the command to use repeats. Other keywords are those of `fit`: where the search starts from. What it finds is
    fast, and trains the same but for `batch_size`.
    """
    if not budget >= FEWEST_SECONDS:
        raise BadInput(f"budget must be at least {FEWEST_SECONDS:g} seconds (found {budget:g})")
    chosen = make_strategy(strategy, ranks)
    asked = _asked(settings, chosen)
    settings_asked = FitSettings.of(progress=False, **keywords)
    with opened(settings_asked.on, PRELOAD) as engine:
        job = Diagnosed.of(task, chosen, replace(settings_asked, on=engine))
        search = Search(job, asked, budget, with_batch or (lambda count: task.replace(batch_size=count)), say)
        search.run()
        return search.result(given or {})


def _asked(settings: Sequence[str] | None, strategy: Strategy) -> list[str]:
    if settings is None:
        return [name for name in SETTINGS[:-1] if name in SETTINGS[:2] or hasattr(strategy, name)]
    for name in settings:
        if name not in SETTINGS:
            raise BadInput(
                f'tune knows no setting "{name}"{did_you_mean(name, SETTINGS)}; there are: {", ".join(SETTINGS)}'
            )
    if not settings:
        raise BadInput(f"tune needs a setting to search; there are: {', '.join(SETTINGS)}")
    return [name for name in SETTINGS if name in settings]


@dataclass
class Candidate:
    """The job with some values, and how it did."""

    values: Values
    variant: Variant

    @property
    def samples_per_second(self) -> float | None:
        rates = [1000 / per_sample(run) for run in self.variant.runs]
        return statistics.median(rates) if rates else None


class Search:
    """The search and what it has found so far."""

    def __init__(
        self, job: Diagnosed, asked: Sequence[str], budget: float, with_batch: Callable[[int], Task], say: Say
    ):
        self.job, self.asked, self.say, self.with_batch = job, asked, say, with_batch
        self.began, self.budget = time.monotonic(), budget
        self.seconds = min(2.0, budget / 100)  # of the shortest slices
        self.skipped: list[dict[str, Any]] = []
        self.default = self._candidate(self._as_it_is())
        self.best, self.tried = self.default, [self.default]
        self.stopped, self.last_rounds = "every value was tried", 0
        self.neighbours = Neighbours()
        self.free = free_memory()
        self.needs: Needs = needs(job_of(job), self.free)

    def run(self) -> None:
        self.neighbours.begin()
        until = self.began + (1 - FOR_THE_END) * self.budget
        for name in self.asked:
            values = self._values(name)
            if values and time.monotonic() < until:
                self._one_setting(name, values, until)
            elif values:
                self._skip(name, "the budget was spent before")
        if time.monotonic() >= until:
            self.stopped = f"the budget of {self.budget:g} s was spent"
        if self.best is not self.default:
            self._confirm()

    # ------------------------------------------------------------ the search

    def _one_setting(self, name: str, values: Sequence[Any], until: float) -> None:
        """Successive halving: the base is the best so far."""
        base, seconds = self.best, self.seconds
        alive = [self._candidate({**base.values, name: value}) for value in values]
        self.tried += alive
        while alive and time.monotonic() < until:
            rounds = ROUNDS if len(alive) > 2 else LAST_ROUNDS
            run_rounds(base.variant, [one.variant for one in alive], rounds, seconds, until=until, say=self.say)
            for one in alive:
                if one.variant.problem is not None:
                    self._skip(name, f"{name}={one.values[name]}: {one.variant.problem}")
            if time.monotonic() >= until:
                break
            known = [one for one in alive if one.variant.problem is None and speedups(one.variant, base.variant)]
            known.sort(key=lambda one: self._gain(one, base), reverse=True)
            if len(known) <= 2:  # both were in the longest slices
                alive = known
                break
            alive, seconds = known[: (len(known) + 1) // 2], 2 * seconds
        for one in alive:
            if not one.variant.runs and one.variant.problem is None:
                self._skip(name, f"{name}={one.values[name]:g}: the budget was spent before")
        faster = [one for one in alive if _clearly(speedups(one.variant, base.variant))]
        if faster:
            most = max(self._gain(one, base) for one in faster)
            alike = [one for one in faster if self._gain(one, base) - 1 >= ALIKE * (most - 1)]
            self.best = min(alike, key=lambda one: one.values[name])  # of those that gain alike, what costs least

    def _gain(self, one: Candidate, base: Candidate) -> float:
        ratios = speedups(one.variant, base.variant)
        return statistics.median(ratios) if ratios else 0.0

    def _confirm(self) -> None:
        """The chosen settings against the default, whatever the rungs have said."""
        before = len(self.default.variant.slices)
        until = max(self.began + self.budget, time.monotonic() + FOR_THE_END * self.budget)
        variants = [self.best.variant]
        run_rounds(self.default.variant, variants, LAST_ROUNDS, 2 * self.seconds, until=until, say=self.say)
        self.last_rounds = len(self.default.variant.slices) - before

    # ------------------------------------------------------------ what there is to try

    def _as_it_is(self) -> Values:
        job = self.job
        workers = job.settings.step.loader_workers
        known = {
            "loader_workers": workers if isinstance(workers, int) else 0,
            "threads": job.settings.threads or max(1, job.cores // job.ranks),
            "bucket_mb": getattr(job.strategy, "bucket_mb", None),
            "chunks": getattr(job.strategy, "chunks", None),
            "batch_size": job.task.batch_size,
        }
        return {name: known[name] for name in self.asked}

    def _values(self, name: str) -> list[Any]:
        """The values of a setting that are worth a try; what is not is noted with the reason."""
        job, base = self.job, self.best.values[name]
        if name == "loader_workers":
            if job.in_memory:
                return self._skip(name, "the data is in memory")
            every: Sequence[Any] = WORKERS[:2] if job.stream else WORKERS
        elif name == "threads":
            every = sorted(
                {1, max(1, job.cores // job.ranks), job.cores, *(2**k for k in range(job.cores.bit_length()))}
            )
        elif base is None:
            return self._skip(name, f"{job.strategy.name} has no such option")
        elif name == "bucket_mb":
            whole = job.parameter_bytes / 2**20
            every = [bucket for bucket in BUCKETS if bucket <= max(base, whole)]  # larger ones are all one bucket
        elif name == "chunks":
            every = [count for count in CHUNKS if count <= job.task.batch_size]
        else:
            every = [int(base * factor) for factor in BATCHES if 1 <= base * factor <= job.samples]
        others = [value for value in every if value != base]
        fitting = [value for value in others if self._fits(name, value)]
        return fitting or (self._skip(name, "there is no other value worth trying") if not others else [])

    def _fits(self, name: str, value: Any) -> bool:
        """Whether the memory that is free is enough."""
        values = {**self.best.values, name: value}
        batch = values.get("batch_size", self.job.task.batch_size)
        workers = values.get("loader_workers") or 0
        needed = self.needs.total(self.job.strategy, batch) + workers * (
            self.job.ranks * PROCESS + 2 * batch * self.needs.batch
        )
        if needed <= MOST_MEMORY * self.free:
            return True
        self._skip(name, f"{name}={value} needs about {size(needed)} of memory, and {size(self.free)} are free")
        return False

    def _skip(self, name: str, reason: str) -> list[Any]:
        self.skipped.append({"setting": name, "reason": reason})
        return []

    def _candidate(self, values: Values) -> Candidate:
        job = self.job
        own = {name: values[name] for name in ("bucket_mb", "chunks") if values.get(name) is not None}
        batch = values.get("batch_size", job.task.batch_size)
        step = {"loader_workers": values["loader_workers"]} if "loader_workers" in values else {}
        changes = {"threads": values["threads"]} if "threads" in values else {}
        label = ", ".join(f"{name}={value:g}" for name, value in values.items() if value is not None)
        variant = job.variant(label, strategy=_with(job.strategy, own), step=step, **changes)
        if batch != job.task.batch_size:
            variant.task = self.with_batch(batch)
        return Candidate(values, variant)

    # ------------------------------------------------------------ what was found

    def result(self, given: Mapping[str, Any]) -> dict[str, Any]:
        gains = speedups(self.best.variant, self.default.variant)
        gains = gains[-self.last_rounds :] if self.last_rounds else gains
        gain = interval(gains) if self.best is not self.default and gains else interval([1.0])
        best = self.best
        if best is not self.default and not _clearly(gains):
            best, gain, self.stopped = self.default, interval([1.0]), f"{self.stopped}; no gain was left at the end"
        return {
            "best": {name: value for name, value in best.values.items() if value is not None},
            "speedup": gain.middle,
            "interval": [gain.low, gain.high],
            "command": self._command(best, given),
            "stopped": self.stopped,
            "rate": self._rate(best),
            "tried": [
                {
                    "settings": {name: value for name, value in one.values.items() if value is not None},
                    "samples_per_second": one.samples_per_second,
                    "rounds": len(one.variant.runs),
                }
                for one in self.tried
                if one.variant.runs or one is self.default
            ],
            "not_tried": self.skipped,
            "others_cores": self.neighbours.cores_of_others(),
            "others_share": self.neighbours.share_taken(),
        }

    def _command(self, best: Candidate, given: Mapping[str, Any]) -> str:
        changed = {name: value for name, value in best.values.items() if value != self.default.values[name]}
        options = {
            name: value for name, value in changed.items() if name in ("loader_workers", "threads", "batch_size")
        }
        return self.job.command(best.variant.strategy, **{**given, **options})

    def _rate(self, best: Candidate) -> str | None:
        """The rule for the rate: speed is all that was measured, and another batch size trains otherwise."""
        before, after = self.job.task.batch_size, best.values.get("batch_size", self.job.task.batch_size)
        if before == after:
            return None
        old, new = _rate_of(self.job.task), _rate_of(best.variant.task)
        words = f"batches of {after} instead of {before} make {before / after:g} times as many updates"
        if old is None:
            return f"{words}: multiply the learning rate by {after / before:g} (linear scaling), and check the accuracy"
        if new != old:
            return (
                f"{words}; the task's recipe sets its rate by the batch: {new:g} instead of {old:g}; check the accuracy"
            )
        scaled = old * after / before
        return (
            f"{words}: set the learning rate to {scaled:g} instead of {old:g} (linear scaling), and check the accuracy"
        )


def _clearly(ratios: Sequence[float]) -> bool:
    """Faster in the middle by more than noise, and in no round slower; once is no proof."""
    return len(ratios) >= 2 and statistics.median(ratios) >= WORTH and min(ratios) > 1


def _with(strategy: Strategy, options: Mapping[str, Any]) -> Strategy:
    return dataclasses.replace(strategy, **options) if options else strategy  # type: ignore[type-var]


def _rate_of(task: Task) -> float | None:
    """The rate a task's optimizer starts with."""
    try:
        with seeded(task.seed):
            model = task.model if isinstance(task.model, torch.nn.Module) else task.model()
            return float(task.optimizer(trained_parameters(model)).param_groups[0]["lr"])
    except Exception:  # an optimizer that has none, or wants more than names and parameters
        return None
