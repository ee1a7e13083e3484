"""Hints: what a record alone shows of where the time goes, each with a command to try.

    of a step        a phase that takes a larger share than it should: load, transfer, augment, communication, wait, update
    of its ranks     one that is behind the others, more threads or ranks than cores, steps too short to be worth starting
    of the run       evaluation, checkpoints, start-up, a pause at every epoch: what is not in the median step

A share says what could be gained at most, not what a change will bring: `manyhands diagnose` measures that. So hints are
for what is plainly out of proportion, and most runs give none.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from .run import PHASES, Run
from .slow_rank import slow_name

FEWEST_STEPS = 10  # of a run that is long enough to be looked at
LOADING, TRANSFER, AUGMENTATION, COMMUNICATION, WAITING, UPDATE = 0.25, 0.25, 0.4, 0.6, 0.4, 0.6  # shares of the step
PERIOD = 8  # updates between averages to try
WORKERS = 4  # loader workers to try: a loader that sleeps gains from more than there are cores
TINY_MS, SMALL_BATCH = 2.0, 8  # a step shorter than this, on so few samples per rank, is mostly calls
CHECKPOINTS = 0.15  # of the wall time
LONG_SECONDS = 60.0  # a start-up that is worth a word: importing torch takes half of that on a busy machine
PAUSE = 0.33  # of the time in steps that epochs take to begin
MEAN_STEP = 1.5  # times the median step that the mean is, where a few steps are very slow


@dataclass(frozen=True)
class Hint:
    """One thing that costs time: milliseconds per step and share (of the step, or of the wall time), where known."""

    bottleneck: str  # one of the words of `manyhands diagnose`
    cost_ms: float | None
    share: float | None
    sentence: str
    command: str


def hints(run: Run) -> list[Hint]:
    """What stands out in this record, largest first; empty for a healthy run, and for one without figures."""
    if run.status not in ("done", "stopped") or (run.steps or 0) < FEWEST_STEPS or not run.seconds:
        return []
    found = [*_crowded(run), *_step(run), *_straggler(run), *_tiny(run), *_around(run)]
    return sorted(found, key=lambda hint: -(float("inf") if hint.cost_ms is None else hint.cost_ms))


# ---------------------------------------------------------------- inside the step


def _step(run: Run) -> Iterator[Hint]:
    """Phases beyond their share of the step."""
    times = {name: (run.phases_ms or {}).get(name) or 0.0 for name in PHASES}
    total = sum(times.values())
    if total <= 0:
        return

    def over(phase: str, limit: float) -> bool:
        return times[phase] > limit * total

    def hint(bottleneck: str, phase: str, what: str, advice: str, command: str) -> Hint:
        share = times[phase] / total
        figures = f"{100 * share:.0f} % of the step ({times[phase]:.1f} of {total:.1f} ms)"
        return Hint(bottleneck, times[phase], share, f"{what} takes {figures}: {advice}.", command)

    if over("load", LOADING) and run.data != "memory":
        advice, command = _loader(run)
        yield hint("loading", "load", f"Loading the data{_with_workers(run)}", advice, command)
    if over("transfer", TRANSFER) and run.data != "memory":
        advice = "pass the data as tensors, which stay on the GPU"
        yield hint("transfer", "transfer", "Moving batches to the GPU", advice, _diagnose(run))
    if over("augment", AUGMENTATION):
        command = _diagnose(run)
        yield hint("augmentation", "augment", "Augmentation", f"{command} measures what it costs", command)
    if over("communication", COMMUNICATION):
        advice, command = _seldom(run, "communicates")
        yield hint("communication", "communication", "Communication", "; ".join([advice, *_inexact(run)]), command)
    if over("update", UPDATE) and not run.servers:  # with servers it is their answer that ranks wait for
        advice, command = _seldom(run, "updates")
        yield hint("update", "update", "The optimizer's update", advice, command)
    if over("wait", WAITING) and run.staleness:  # ranks that keep step wait for many reasons, a busy machine among them
        command = _diagnose(run)
        yield hint(
            "lock", "wait", "Waiting for the lock", f"{command} measures what ranks would gain without it", command
        )


def _with_workers(run: Run) -> str:
    return (
        f" with {run.loader_workers} loader workers"
        if isinstance(run.loader_workers, int) and run.loader_workers
        else ""
    )


def _loader(run: Run) -> tuple[str, str]:
    workers = run.loader_workers
    if run.strategy == "script":
        option = f"num_workers={WORKERS}"
        return f"try {option} in its DataLoader", f"DataLoader(..., {option})"
    if run.data == "stream":  # which one worker reads
        return ("try --loader-workers 1", _again(run, "--loader-workers", "1")) if not workers else _cheaper(run)
    if workers == "auto" or (isinstance(workers, int) and workers >= WORKERS):
        return _cheaper(run)
    return f"try --loader-workers {WORKERS}", _again(run, "--loader-workers", str(WORKERS))


def _cheaper(run: Run) -> tuple[str, str]:
    command = _diagnose(run)
    return f"make reading a sample cheaper; {command} measures what that would gain", command


def _seldom(run: Run, verb: str) -> tuple[str, str]:
    """Fewer updates, each of more samples."""
    steps = 4 * (run.accumulate or 1)
    if run.strategy == "script":
        return "a larger batch, or gradients accumulated over several, spreads it over more samples", "a larger batch"
    return f"--accumulate {steps} {verb} only every {steps} steps", _again(run, "--accumulate", str(steps))


def _inexact(run: Run) -> Iterator[str]:
    """What talks less and does not end with the weights of `single`."""
    if run.strategy in ("ddp", "fsdp", "parameter_server"):
        yield f"local_sgd:period={PERIOD} (not exact) averages weights every {PERIOD} updates"
    hosts = {row.get("host") for row in run.per_rank or []}
    if len(hosts) > 1 and run.strategy == "ddp" and "compress" not in run.options:
        yield "ddp:compress=bf16 (not exact) sends half the bytes"


def _straggler(run: Run) -> Iterator[Hint]:
    """A rank, or server, that the measurements of this very run have named."""
    behind = (run.slow_rank or {}).get("behind_ms")
    if run.slow_rank is None or behind is None:
        return
    total, command = sum(value or 0.0 for value in (run.phases_ms or {}).values()), _diagnose(run)
    who, phase = slow_name(run.slow_rank), run.slow_rank.get("phase")
    told = f"{who[:1].upper()}{who[1:]} is slow in {phase}, {behind:.1f} ms per step behind the others"
    sentence = f"{told}: {command} finds out whether its data or its process is slow."
    if run.strategy == "script":
        sentence, command = f"{told}: look at what only it does, and at its share of the data.", run.command or ""
    yield Hint("straggler", behind, behind / total if total else None, sentence, command)


# ---------------------------------------------------------------- too many for the cores, too little to do


def _crowded(run: Run) -> Iterator[Hint]:
    """More threads than cores. What it costs cannot be told from outside; it distorts all other figures."""
    cores, threads, ranks = (run.environment or {}).get("cores"), run.threads, run.ranks or 1
    hosts = {row.get("host") for row in run.per_rank or []}
    if run.device != "cpu" or not isinstance(cores, int) or len(hosts) > 1:
        return
    if ranks > cores:
        sentence = f"{ranks} ranks share {_amount(cores, 'core')}: try --ranks {max(1, cores)}."
        yield Hint("cores", None, None, sentence, _again(run, "--ranks", str(max(1, cores))))
    elif threads and threads * ranks > cores:
        each = max(1, cores // ranks)
        where = f" on each of {ranks} ranks" if ranks > 1 else ""
        sentence = f"{threads} threads{where} share {_amount(cores, 'core')}: try --threads {each}."
        yield Hint("threads", None, None, sentence, _again(run, "--threads", str(each)))


def _tiny(run: Run) -> Iterator[Hint]:
    middle, batch = (run.step_ms or {}).get("median"), run.batch_size
    if (
        middle is None
        or not batch
        or middle >= TINY_MS
        or batch > SMALL_BATCH * (run.ranks or 1)
        or run.strategy == "script"
    ):
        return
    larger = max(4 * batch, 4 * SMALL_BATCH)
    sentence = (
        f"Steps of {middle:.2f} ms on {_amount(batch, 'sample')} are spent on calls rather than arithmetic: try "
        f"--batch-size {larger}, with a learning rate to match."
    )
    yield Hint("launch", middle, 1.0, sentence, _again(run, "--batch-size", str(larger)))


# ---------------------------------------------------------------- around the steps


def _around(run: Run) -> Iterator[Hint]:
    """What the run spends beside its steps, as a share of the wall time."""
    seconds, evaluation = run.seconds or 0.0, run.evaluation_seconds or 0.0
    start, checkpoints = run.startup_seconds or 0.0, run.checkpoint_seconds or 0.0
    wall = seconds + evaluation + start + checkpoints

    def hint(bottleneck: str, spent: float, sentence: str, command: str) -> Hint:
        return Hint(bottleneck, 1000 * spent / run.steps, spent / wall, sentence, command)

    if evaluation > max(seconds, 1.0) and len(run.epochs or []) > 1:
        every = max(2, min(len(run.epochs), round(2 * evaluation / seconds)))
        sentence = (
            f"Evaluation takes {evaluation:.1f} s and training {seconds:.1f} s: try --eval-every {every} (epochs)."
        )
        yield hint("evaluation", evaluation, sentence, _again(run, "--eval-every", str(every)))
    if checkpoints > max(CHECKPOINTS * wall, 1.0):
        share = f"{100 * checkpoints / wall:.0f} % of the run"
        sentence = f"Checkpoints take {checkpoints:.1f} s, {share}: try --checkpoint-every 60s."
        yield hint("checkpoint", checkpoints, sentence, _again(run, "--checkpoint-every", "60s"))
    if start > max(seconds + evaluation, LONG_SECONDS):
        sentence = (
            f"Start-up takes {start:.1f} s and training {seconds:.1f} s: creating the data or the model may be slow; "
            f"{_diagnose(run)} finds out."
        )
        yield hint("start", start, sentence, _diagnose(run))
    yield from _pause(run)


def _pause(run: Run) -> Iterator[Hint]:
    """Time that epochs take to begin: between their steps, or in a few very slow ones of each.

    On a busy machine some steps are slow too, but not as much in every epoch alike.
    """
    epochs, middle = run.epochs or [], _steps_of_fit(run).get("median")
    if middle is None or len(epochs) < 3 or run.steps < FEWEST_STEPS * len(epochs):
        return
    lost = [(entry.get("seconds") or 0.0) - middle * run.steps / len(epochs) / 1000 for entry in epochs]
    inside = sum(lost) if min(lost) > 0.5 * fmean(lost) and _few_very_slow(run, middle) else 0.0
    pause, command = inside + (run.pause_seconds or 0.0), _diagnose(run)
    if pause < max(PAUSE * (run.seconds or 0.0), 1.0):
        return
    each, cost = 1000 * pause / len(epochs), 1000 * pause / run.steps
    sentence = (
        f"Every epoch takes {each:.0f} ms to start, as long as {each / middle:.0f} steps: epochs of more steps start less "
        f"often; {command} measures it."
    )
    yield Hint("loading", cost, cost / (cost + middle), sentence, command)


def _few_very_slow(run: Run, middle: float) -> bool:
    """Whether the mean step is far above the median and above nine of ten steps as well."""
    mean, slow = 1000 * (run.seconds or 0.0) / run.steps, _steps_of_fit(run).get("p90", 0.0)
    return mean > max(MEAN_STEP * middle, slow)


def _steps_of_fit(run: Run) -> dict[str, float]:
    """Those that its epochs consist of; a row of a comparison has the step of its rounds beside them."""
    return (run.whole_fit or {}).get("step_ms") or run.step_ms or {}


# ---------------------------------------------------------------- commands


def _again(run: Run, option: str, value: str) -> str:
    """The run's own command with an option set; the option alone where nobody knows the command."""
    if not run.command:
        return f"{option} {value}"
    words = shlex.split(run.command)
    if option in words[:-1]:
        words[words.index(option) + 1] = value
        return shlex.join(words)
    return shlex.join([*words, option, value])


def _diagnose(run: Run) -> str:
    source = run.source or run.task
    ranks = ["--ranks", str(run.ranks)] if (run.ranks or 1) > 1 else []
    return shlex.join(["manyhands", "diagnose", source, run.label, *ranks])


def _amount(value: int, noun: str) -> str:
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"
