"""Runs beside each other: what each is called, which may be compared, and which is faster."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from ..record.run import Run
from ..record.spread import trimmed
from .figures import kind, speed, speeds, spread, taken_share

UNSURE = 0.05  # how far off a speed measured only once may be, as a share of it
NEGLIGIBLE = 1.03  # a ratio below this is no difference, however steady the rounds
SMALL = 1.05  # and one below this in every round is the same speed for sure
MOST_BY_CHANCE = 2.0  # a ratio beyond this is a difference, whatever others did meanwhile


def relation(run: Run, other: Run) -> str | None:
    """`faster`, `slower`, `same`, or `unclear` where the measurements allow several of these; None without figures.

    Rows of one comparison took turns in every round, so a slow minute of the machine fell on both: there the ratio of
    each round counts, and must say the same in all of them. On a busy machine that is not enough: others may have left
    more of the cores to one row than to the other, and only a difference beyond that counts.
    """
    ratio = speedup(run, other)
    if ratio is None:
        return None
    known = ratios(run, other)
    middle = median(known) if _by_round(run, other) else ratio
    busy = max(taken_share(run), taken_share(other))
    chance = min(MOST_BY_CHANCE, 1 / (1 - busy)) if busy < 1 else MOST_BY_CHANCE
    if known[0] > chance and middle >= NEGLIGIBLE and ratio > 1:
        return "faster"
    if known[-1] < 1 / chance and middle <= 1 / NEGLIGIBLE and ratio < 1:
        return "slower"
    return "same" if not busy and surely_same(run, other) else "unclear"


def surely_same(run: Run, other: Run) -> bool:
    """Whether any difference is small in the outermost rounds too."""
    known = ratios(run, other)
    return known[0] >= 1 / SMALL and known[-1] <= SMALL


def ratios(run: Run, other: Run) -> list[float]:
    """How many times as fast as the other: in every round that both made in turn, else at least and at most."""
    (low, high), (other_low, other_high) = _reach(run), _reach(other)
    return _by_round(run, other) or [low / other_high if other_high else 0.0, high / other_low if other_low else 0.0]


def _by_round(run: Run, other: Run) -> list[float]:
    """The ratios of the rounds that two rows of one comparison made in turn, outermost ones of many left out."""
    mine, theirs = speeds(run), speeds(other)
    in_turn = run.comparison is not None and run.comparison == other.comparison and len(mine) == len(theirs) > 1
    if not in_turn or not all(theirs):
        return []
    return trimmed([one / two for one, two in zip(mine, theirs, strict=True)])


def _reach(run: Run) -> tuple[float, float]:
    middle = speed(run) or 0.0
    return spread(run) or (middle * (1 - UNSURE), middle * (1 + UNSURE))


def speedup(run: Run, baseline: Run | None) -> float | None:
    """How many times the baseline's samples per second this run trains."""
    mine, theirs = speed(run), speed(baseline) if baseline else None
    return mine / theirs if mine is not None and theirs else None


def efficiency(run: Run, baseline: Run) -> float | None:
    """Speed-up over one process with the same threads (or on the same kind of GPU), divided by the ranks."""
    ratio = speedup(run, baseline)
    if ratio is None or not run.ranks or (kind(run) == "cpu" and run.threads != baseline.threads):
        return None
    return ratio / run.ranks


def setting(run: Run) -> tuple[Any, ...]:
    """What must be equal before two speeds may be compared: task, batch size and machine.

    A script has the batch size it wants: most take a fixed one per rank, so that more ranks mean larger steps. Rows whose
    batch grew with their ranks have the samples of one rank in common.
    """
    machine = run.environment or {}
    batch_size: int | str | None = None if run.strategy == "script" else run.batch_size
    if run.batch_per_rank is not None:
        batch_size = f"{run.batch_per_rank} per rank"
    return run.task, batch_size, machine.get("cpu"), machine.get("gpu"), machine.get("cores")


def measured(runs: Sequence[Run]) -> list[Run]:
    """The runs that ended well and have a speed."""
    return [run for run in runs if run.status == "done" and speed(run)]


def baselines(run: Run, runs: Sequence[Run]) -> list[Run]:
    """The `single` runs this one may be compared with, fewest threads first; for a script, those on one rank."""
    alone = "script" if run.strategy == "script" else "single"
    wanted = alone, 1, setting(run), kind(run), run.precision
    singles = [
        one for one in measured(runs) if (one.strategy, one.ranks, setting(one), kind(one), one.precision) == wanted
    ]
    return sorted(singles, key=lambda one: one.threads or 0)


def names(runs: Sequence[Run]) -> list[str]:
    """One name per run: its label, and where labels are equal what tells the runs apart."""
    found = [run.label for run in runs]
    for describe in _DETAILS:
        groups: dict[str, list[int]] = {}
        for index, name in enumerate(found):
            groups.setdefault(name, []).append(index)
        for group in groups.values():
            details = [describe(runs[index]) for index in group]
            if len(set(details)) > 1:
                for index, detail in zip(group, details, strict=True):
                    found[index] += f" ({detail})"
    earlier = [found[:index].count(name) for index, name in enumerate(found)]
    return [f"{name} #{again + 1}" if again else name for name, again in zip(found, earlier, strict=True)]


def _count(value: object, noun: str) -> str:
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"


_DETAILS: tuple[Callable[[Run], str], ...] = (
    lambda run: str(run.task),
    lambda run: _count(run.ranks, "rank"),
    lambda run: _count(run.threads, "thread"),
    lambda run: f"batch {run.batch_size}",
    lambda run: str(run.precision),
    kind,
    lambda run: f"seed {run.seed}",
    lambda run: str(run.started),
)


def name_lines(name: str, width: int = 18) -> list[str]:
    """Break a name after `:`, `,` or before ` (`, and after `=` where that is not enough, into lines of at most `width`;
    a single word may be longer."""
    lines: list[str] = []
    for part in re.split(r"(?<=[:,])| (?=\()", name):
        pieces = [part] if len(part) <= width else re.split(r"(?<==)", part)
        for number, piece in enumerate(pieces):
            space = " " if piece.startswith("(") and not number else ""
            if lines and len(lines[-1]) + len(space + piece) <= width:
                lines[-1] += space + piece
            elif piece or not lines:
                lines.append(piece)
    return lines
