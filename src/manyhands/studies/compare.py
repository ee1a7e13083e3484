"""compare(): the same task under several strategies, side by side and fairly.

    1. one whole fit a strategy, from equal weights over equal batches: accuracy, phases, memory
    2. rounds of short slices, all strategies in turn, round after round: speed, as medians with their spread,
       so that a machine that slows down meanwhile slows everybody

`single` appears with one rank's threads and with all cores: that keeps the others honest.
"""

from __future__ import annotations

import os
import statistics
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import BadInput, RankFailed, Refused
from ..record import first_loss
from ..record.cores import available_cores
from ..record.run import Run
from ..record.slow_rank import agreed
from ..strategies import make_strategy
from ..strategies.contract import Strategy
from ..task import Task
from ..training.run_fit import run_fit
from ..training.settings import FitSettings
from ..world.devices import default_ranks
from .compare_progress import CompareProgress

HANDFUL = ("single", "ddp", "hogwild", "parameter_server")
ROUND_SECONDS = 1.0  # the length of a slice
FEWEST_STEPS = 20  # of a slice


@dataclass
class Contender:
    """One strategy of a comparison, with the threads it may use on each rank."""

    strategy: Strategy
    threads: int | None
    run: Run | None = None
    slow: list[dict[str, Any] | None] = field(default_factory=list)  # who was slow in the fit and in every round

    @property
    def label(self) -> str:
        if self.strategy.name == "single":
            return f"single, {self.threads} thread{'s' * (self.threads != 1)}"
        return str(self.strategy)

    @property
    def folder(self) -> str:
        name = str(self.strategy).replace(":", "-").replace("=", "-").replace(",", "-").replace("/", "-")
        return f"{name}-{self.threads}t" if self.strategy.name == "single" else name


class Runs(list[Run]):
    """The runs of a comparison, one a row."""

    interrupted = False  # by Ctrl-C: the rows hold what was finished


def compare(
    task: Task,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    ranks: int | None = None,
    threads: int | None = None,
    rounds: int = 3,
    round_seconds: float = ROUND_SECONDS,
    time_limit: float | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **keywords: Any,
) -> Runs:
    """Fit `task` under each strategy and measure their speed in interleaved rounds; one Run a row.

    A strategy that refuses the task or fails is a row with its reason. `time_limit` (seconds) bounds each fit.
    Other keywords go to `fit`. Ctrl-C keeps what was finished.
    """
    if rounds < 0:
        raise BadInput(f"rounds must be 0 or more (found {rounds})")
    rows = contenders(strategies, ranks, threads)
    settings = FitSettings.of(run_dir=run_dir, time_limit=time_limit, progress=progress, **keywords)
    shown = CompareProgress(len(rows), rounds, round_seconds, progress)
    interrupted = False
    try:
        for row in rows:
            shown.begin_fit(row.label)
            folder = Path(run_dir) / row.folder if run_dir is not None else None
            row.run = _fit(task, row, replace(settings, run_dir=folder))
            row.slow.append(row.run.suspect)
            shown.end_fit(row.run)
        _measure_rounds(task, rows, rounds, round_seconds, settings, shown)
        shown.end()
    except KeyboardInterrupt:
        interrupted = True
        shown.say("interrupted: keeping what was finished")
        for row in rows:
            row.run = row.run or _without_figures(task, row, "stopped", "interrupted before it ended")
    _check_first_losses(rows)
    number = uuid.uuid4().hex[:12]
    runs = Runs(_finish(row, run_dir, number) for row in rows)
    runs.interrupted = interrupted
    return runs


def contenders(strategies: Sequence[str | Strategy] | None, ranks: int | None, threads: int | None) -> list[Contender]:
    """The rows in the order asked for; `single` becomes two, and is added where it is missing."""
    if isinstance(strategies, str | Strategy):
        strategies = [strategies]
    chosen = list(strategies or HANDFUL)
    made = [make_strategy(spec, None if _is_single(spec) else ranks) for spec in chosen]
    others = list({str(strategy): strategy for strategy in made if strategy.name != "single"}.values())
    cores = available_cores()
    width = ranks or (max(strategy.ranks for strategy in others) if others else default_ranks())
    narrow = threads or max(1, cores // width)
    singles = [Contender(make_strategy("single"), count) for count in dict.fromkeys((narrow, threads or cores))]
    return [*singles, *(Contender(strategy, threads or max(1, cores // strategy.ranks)) for strategy in others)]


def _is_single(spec: str | Strategy) -> bool:
    return spec.name == "single" if isinstance(spec, Strategy) else str(spec).split(":")[0] == "single"


def _fit(task: Task, row: Contender, settings: FitSettings) -> Run:
    """One fit whose refusal or failure is a row, not the end of the comparison."""
    try:
        return run_fit(task, row.strategy, replace(settings, threads=row.threads))
    except (Refused, RankFailed) as problem:
        status = "refused" if isinstance(problem, Refused) else "failed"
        return problem.run or _without_figures(task, row, status, str(problem))


def _without_figures(task: Task, row: Contender, status: str, reason: str) -> Run:
    strategy = row.strategy
    return Run(task.name, strategy.name, strategy.options, status=status, reason=reason, ranks=strategy.ranks)


def _measure_rounds(
    task: Task, rows: list[Contender], rounds: int, round_seconds: float, settings: FitSettings, shown: CompareProgress
) -> None:
    """Short slices of every strategy in turn, so that noise falls on all alike."""
    slices = [(row, row.run) for row in rows if row.run is not None and row.run.status == "done" and row.run.steps]
    quick = task.replace(test=None)
    alone = replace(
        settings, run_dir=None, resume=False, checkpoint_every=None, on_step=None, on_epoch=None, progress=False
    )
    for number in range(1, rounds + 1):
        for place, (row, run) in enumerate(slices, start=1):
            shown.slice(number, place, len(slices), row.label)
            wanted = int(1000 * round_seconds / run.step_ms["median"]) if run.step_ms else FEWEST_STEPS
            steps = min(run.steps, max(FEWEST_STEPS, wanted))
            piece = _fit(quick, row, replace(alone, step=replace(settings.step, max_steps=steps)))
            run.rounds = run.rounds or []
            if piece.status == "done" and piece.samples_per_second:
                run.rounds.append(piece.samples_per_second)
                row.slow.append(piece.suspect)
            else:
                run.notes.append(f"round {number} {piece.status}: {piece.reason}")


def _check_first_losses(rows: Sequence[Contender]) -> None:
    """A row that promises the weights of `single` begins with its loss, or its record says that it does not."""
    single = next((row.run for row in rows if row.run and row.strategy.name == "single" and row.run.losses), None)
    for row in rows:
        if single is not None and row.run and (apart := first_loss.differing(row.run, single)):
            row.run.notes.append(f"{row.label} {first_loss.in_words(*apart)}; `manyhands verify` finds out why")


def _finish(row: Contender, run_dir: str | os.PathLike[str] | None, comparison: str) -> Run:
    """The row's run with the speed of its rounds, kept in its folder."""
    run = row.run
    assert run is not None
    run.comparison = comparison
    if run.threads is None:
        run.threads = row.threads
    if run.rounds:
        run.samples_per_second = statistics.median(run.rounds)
        run.slow_rank = agreed(row.slow)
    if run_dir is not None:
        run.save(Path(run_dir) / row.folder)
    return run
