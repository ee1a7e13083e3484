"""compare(): the same task under several strategies, side by side and fairly.

    1. one whole fit per strategy, from equal weights over equal batches: accuracy and memory
    2. rounds of short slices, all strategies in turn, round after round: speed, as medians with their spread, and the
       phases of a step (rounds.py), so that a machine that slows down meanwhile slows everybody; what other processes
       use of the machine is recorded with them

`single` appears with one rank's threads and with all cores: that keeps the others honest.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadInput, RankFailed, Refused
from ..record import first_loss, slow_rank
from ..record.neighbours import Neighbours
from ..record.run import Run
from ..record.run_folder import check_writable
from ..record.run_forecast import learn_forecast
from ..record.trackers.log import Logs
from ..strategies.contract import Strategy
from ..strategies.job import StepSettings
from ..task import Task
from ..training import PRELOAD
from ..training.run_fit import run_fit
from ..training.settings import FitSettings
from ..world.engines.choose import opened
from ..world.engines.local import Local
from ..world.launch.fork_server import warm_up
from .compare_progress import CompareProgress
from .contenders import Contender, contenders, modules_of
from .growing_batch import Recipe, give_tasks, too_few_samples
from .rounds import take_rounds
from .runs import Runs

ROUND_SECONDS = 1.0  # the length of a slice
FEWEST_STEPS = 20  # of a slice


def compare(
    task: Task,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    ranks: int | Iterable[int] | None = None,
    scale_batch: bool | Recipe = False,
    threads: int | None = None,
    rounds: int = 3,
    round_seconds: float = ROUND_SECONDS,
    time_limit: float | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **keywords: Any,
) -> Runs:
    """Fit `task` under each strategy and measure their speed in interleaved rounds; one Run per row.

    A strategy that refuses the task or fails is a row with its reason. Ctrl-C keeps what was finished.

    Args:
        task: What is trained, the same under every strategy.
        strategies: Names, names with options, or strategy objects. Default: single, ddp, hogwild and
            parameter_server.
        ranks: A number, or several such as `[1, 2, 4]`: then each strategy has a row for each.
        scale_batch: True multiplies the task's batch size by the ranks of a row. A function makes the task for a batch
            size, where its recipe depends on it.
        threads: Threads of each rank. Default: cores divided by the largest number of ranks.
        rounds: Short slices of every strategy, in turn, that measure speed after the whole fits.
        round_seconds: The length of a slice; 1 second unless given.
        time_limit: Seconds that each whole fit may take.
        run_dir: The parent of the rows' folders. Default: nothing is written.
        progress: Show progress on standard error.
        **keywords: All other keywords of `fit`; `on` says where all rows run.

    Returns:
        The runs, one per row, `single` first.
    """
    if rounds < 0:
        raise BadInput(f"rounds must be 0 or more (found {rounds})")
    settings = FitSettings.of(run_dir=run_dir, time_limit=time_limit, progress=progress, **keywords)
    if run_dir is not None:
        check_writable(run_dir)
    with opened(settings.on, PRELOAD) as engine:
        rows = engine.agreed(lambda: contenders(strategies, ranks, threads, engine, settings.survives))
        if isinstance(engine, Local):
            warm_up(modules_of(rows, settings))
        give_tasks(task, rows, scale_batch)
        number = uuid.uuid4().hex[:12]
        logs = Logs(settings.trackers if engine.leads else [], group=number)
        settings = replace(settings, on=engine, progress=progress and engine.leads, logs=logs)
        shown = CompareProgress(len(rows), rounds, round_seconds, bool(settings.progress))
        settings = replace(settings, progress=shown.cell or settings.progress)  # in a notebook all share one display
        neighbours = Neighbours()
        with logs:
            interrupted = _fit_and_measure(rows, rounds, round_seconds, settings, shown, neighbours)
        known = isinstance(engine, Local)  # of other engines the ranks are not our children, but neighbours
        others = neighbours.cores_taken() if known else None
    _check_first_losses(rows)
    runs = Runs(_finish(row, run_dir if engine.leads else None, number, others) for row in rows)
    runs.interrupted = interrupted
    logs.finish(runs)
    return runs


def _fit_and_measure(
    rows: list[Contender],
    rounds: int,
    round_seconds: float,
    settings: FitSettings,
    shown: CompareProgress,
    neighbours: Neighbours,
) -> bool:
    """Every row gets its run. True where Ctrl-C ended it early: the rows hold what was finished."""
    neighbours.begin()
    try:
        for row in rows:
            shown.begin_fit(row.label)
            folder = Path(settings.run_dir) / row.folder if settings.run_dir is not None else None
            row.run = _fit(row, replace(settings, run_dir=folder))
            shown.end_fit(row.run)
        if rounds:
            neighbours.begin()  # the speeds are those of the rounds
        _measure_rounds(rows, rounds, round_seconds, settings, shown)
        shown.end()
    except KeyboardInterrupt as ending:
        shown.say("interrupted: keeping what was finished")
        measured = getattr(ending, "run", None)  # of the row that was training: run_fit keeps what is known of it
        for row in rows:
            if row.run is None:
                row.run, measured = measured or _without_figures(row, "stopped", "interrupted before it ended"), None
        return True
    return False


def _fit(row: Contender, settings: FitSettings, task: Task | None = None) -> Run:
    """One fit whose refusal or failure is a row, not the end of the comparison."""
    if row.strategy is None:
        return _without_figures(row, "refused", str(row.refusal))
    try:
        return run_fit(task or row.task, row.strategy, replace(settings, threads=row.threads, tried=row.tried))
    except (Refused, RankFailed) as problem:
        status = "refused" if isinstance(problem, Refused) else "failed"
        run = problem.run or _without_figures(row, status, str(problem))
        if problem.final:
            row.run = row.run or run
            raise KeyboardInterrupt from problem
        return run


def _without_figures(row: Contender, status: str, reason: str) -> Run:
    name, options = (row.strategy.name, row.strategy.options) if row.strategy else (row.asked, {})
    return Run(row.task.name, name, options, status=status, reason=reason, ranks=row.ranks)


def _measure_rounds(
    rows: list[Contender], rounds: int, round_seconds: float, settings: FitSettings, shown: CompareProgress
) -> None:
    """Short slices of every strategy in turn, so that noise falls on all alike."""
    slices = [(row, row.run) for row in rows if row.run is not None and row.run.status == "done" and row.run.steps]
    alone = replace(
        settings, run_dir=None, resume=False, checkpoint_every=None, on_step=None, on_epoch=None, progress=False,
        log=None, logs=None,
    )  # fmt: skip
    for number in range(1, rounds + 1):
        for place, (row, run) in enumerate(slices, start=1):
            shown.slice(number, place, len(slices), row.label)
            short = replace(alone, step=_slice(run, round_seconds, settings.step))
            piece = _fit(row, short, row.task.replace(test=None))
            if piece.status == "done" and piece.samples_per_second:
                piece.weights = piece.ema_weights = None  # nobody asks for those, and every round has its own
                row.slices.append(piece)
            else:
                run.notes.append(f"round {number} {piece.status}: {piece.reason}")


def _slice(run: Run, seconds: float, step: StepSettings) -> StepSettings:
    """Steps for so many seconds, at most those of the fit. A fit of a few steps is made longer by passing the data again:
    its first ones are slow, and a batch that grows with the ranks leaves the rows with most ranks the fewest."""
    wanted = int(1000 * seconds / run.step_ms["median"]) if run.step_ms else FEWEST_STEPS
    if run.steps >= FEWEST_STEPS or run.steps == step.max_steps:
        return replace(step, max_steps=min(run.steps, max(FEWEST_STEPS, wanted)))
    steps = min(FEWEST_STEPS, step.max_steps or FEWEST_STEPS)
    return replace(step, max_steps=steps, epochs=max(1, len(run.epochs)) * math.ceil(steps / run.steps))


def _check_first_losses(rows: Sequence[Contender]) -> None:
    """A row that promises the weights of `single` begins with its loss, or its record says that it does not."""
    single = next((row.run for row in rows if row.run and row.single and row.run.losses), None)
    for row in rows:
        if single is not None and row.run and (apart := first_loss.differing(row.run, single)):
            row.run.notes.append(f"{row.label} {first_loss.in_words(*apart)}; `manyhands verify` finds out why")


def _finish(row: Contender, run_dir: str | os.PathLike[str] | None, comparison: str, others_cores: float | None) -> Run:
    """The row's run with the figures of its rounds, kept in its folder."""
    run = row.run
    assert run is not None
    run.comparison, run.asked, run.batch_per_rank = comparison, row.asked, row.batch_per_rank
    run.notes += row.notes
    if row.batch_per_rank is not None:
        run.notes += too_few_samples(run)
    if run.threads is None:
        run.threads = row.threads
    if run.steps:
        run.others_cores = others_cores
    if row.slices:
        run.slow_rank = slow_rank.told_from_noise([run.suspect, *(piece.suspect for piece in row.slices)])
        take_rounds(run, row.slices)
    if run_dir is not None:
        learn_forecast(run, Path(run_dir) / row.folder)
        run.save(Path(run_dir) / row.folder)
    return run
