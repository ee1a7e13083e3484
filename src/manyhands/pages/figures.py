"""Figures that follow from runs: speed and its spread, speed-up, efficiency, and the rows a comparison shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from ..record.run import PHASES, Run
from ..record.slow_rank import slow_one

UNSURE = 0.05  # how far off a speed measured only once may be, as a share of it
NEGLIGIBLE = 1.03  # a ratio below this is no difference, however steady the rounds
SMALL = 1.05  # and one below this in every round is the same speed for sure
Row = dict[str, Any]


def number(value: object) -> float | None:
    """The value as a finite float, else None: records may come from any version."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def speeds(run: Run) -> list[float]:
    """Samples per second of each round, where rounds were measured."""
    return [value for item in run.rounds or [] if (value := number(item)) is not None]


def speed(run: Run) -> float | None:
    """Samples per second: the median of the rounds, else that of the whole fit."""
    rounds = speeds(run)
    return median(rounds) if rounds else number(run.samples_per_second)


def spread(run: Run) -> tuple[float, float] | None:
    """The slowest and the fastest round; None when there are fewer than two. With eight rounds or more the
    outermost eighth on each side is left out, so that more measuring does not mean more doubt."""
    rounds = sorted(speeds(run))
    if len(rounds) < 2:
        return None
    trim = len(rounds) // 8
    return rounds[trim], rounds[-1 - trim]


def relation(run: Run, other: Run) -> str | None:
    """`faster`, `slower` or, when the difference is inside the spread, `same`; None without figures.

    Rows of one comparison took turns in every round, so a slow minute of the machine fell on both: there the ratio of
    each round counts, and must say the same in all of them.
    """
    ratio = speedup(run, other)
    if ratio is None:
        return None
    ratios = _by_round(run, other)
    if ratios:
        unclear = ratios[0] <= 1 <= ratios[-1] or (median(ratios) > 1) != (ratio > 1)
        ratio = median(ratios)
    else:
        (low, high), (other_low, other_high) = _reach(run), _reach(other)
        unclear = low <= other_high and other_low <= high
    if unclear or 1 / NEGLIGIBLE < ratio < NEGLIGIBLE:
        return "same"
    return "faster" if ratio > 1 else "slower"


def surely_same(run: Run, other: Run) -> bool:
    """Whether any difference is small in the outermost rounds too; `same` alone may only mean that nobody can tell."""
    ratios = _by_round(run, other)
    if not ratios:
        (low, high), (other_low, other_high) = _reach(run), _reach(other)
        ratios = [low / other_high, high / other_low] if other_low else [0.0]
    return ratios[0] >= 1 / SMALL and ratios[-1] <= SMALL


def _by_round(run: Run, other: Run) -> list[float]:
    """The ratios of the rounds that two rows of one comparison made in turn, outermost ones of many left out."""
    mine, theirs = speeds(run), speeds(other)
    if run.comparison is None or run.comparison != other.comparison or len(mine) != len(theirs) or len(mine) < 2:
        return []
    trim = len(mine) // 8
    ratios = sorted(one / two for one, two in zip(mine, theirs, strict=True))
    return ratios[trim : len(ratios) - trim]


def _reach(run: Run) -> tuple[float, float]:
    middle = speed(run) or 0.0
    return spread(run) or (middle * (1 - UNSURE), middle * (1 + UNSURE))


def speedup(run: Run, baseline: Run | None) -> float | None:
    """How many times the baseline's samples per second this run trains."""
    mine, theirs = speed(run), speed(baseline) if baseline else None
    return mine / theirs if mine is not None and theirs else None


def efficiency(run: Run, baseline: Run | None) -> float | None:
    """Speed-up over one process with the same threads (or on the same kind of GPU), divided by the ranks."""
    ratio = speedup(run, baseline)
    if ratio is None or baseline is None or not run.ranks:
        return None
    if kind(run) == "cpu" and run.threads != baseline.threads:
        return None
    return ratio / run.ranks


def largest_phase(run: Run) -> tuple[str, float] | None:
    """The phase that takes the largest share of a step, and that share (0..1)."""
    phases = phase_times(run.phases_ms)
    total = sum(phases.values())
    if total <= 0:
        return None
    name = max(phases, key=lambda phase: phases[phase])
    return name, phases[name] / total


def phase_times(phases: object) -> dict[str, float]:
    """Milliseconds of every known phase, in the order of the design; unknown names count as `other`."""
    times = dict.fromkeys(PHASES, 0.0)
    if isinstance(phases, dict):
        for name, value in phases.items():
            times[name if name in times else "other"] += number(value) or 0.0
    return times


def accuracy(run: Run) -> float | None:
    return number((run.test or {}).get("accuracy"))


def peak_memory(run: Run) -> float | None:
    """The most memory any rank held."""
    found = [number(rank.get("peak_memory_bytes")) for rank in run.per_rank or []]
    return max((value for value in found if value is not None), default=None)


def seconds_to(run: Run, target: float | None) -> float | None:
    """Training seconds until an epoch ended at the target accuracy or above; None when none did."""
    elapsed = 0.0
    for epoch in run.epochs or []:
        seconds, reached = number(epoch.get("seconds")), number(epoch.get("test_accuracy"))
        if target is None or seconds is None:
            return None
        elapsed += seconds
        if reached is not None and reached >= target:
            return elapsed
    return None


def kind(run: Run) -> str:
    """`cpu`, `cuda` or another kind of device, without its number."""
    return (run.device or "cpu").split(":")[0]


def setting(run: Run) -> tuple[Any, ...]:
    """What must be equal before two speeds may be compared: task, batch size and machine."""
    machine = run.environment or {}
    return run.task, run.batch_size, machine.get("cpu"), machine.get("gpu"), machine.get("cores")


def measured(runs: Sequence[Run]) -> list[Run]:
    """The runs that ended well and have a speed."""
    return [run for run in runs if run.status == "done" and speed(run)]


def baselines(run: Run, runs: Sequence[Run]) -> list[Run]:
    """The `single` runs this one may be compared with, fewest threads first."""
    singles = [
        other
        for other in measured(runs)
        if other.strategy == "single"
        and (setting(other), kind(other), other.precision) == (setting(run), kind(run), run.precision)
    ]
    return sorted(singles, key=lambda other: other.threads or 0)


def names(runs: Sequence[Run]) -> list[str]:
    """One name a run: its label, and where labels are equal what tells the runs apart."""
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
    seen: dict[str, int] = {}
    for index, name in enumerate(found):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            found[index] = f"{name} #{seen[name]}"
    return found


def name_lines(name: str, width: int = 18) -> list[str]:
    """Break a name after `:`, `,` or before ` (`, so that no line is much longer than `width`."""
    words = name.replace(":", ":\0").replace(",", ",\0").replace(" (", "\0(").split("\0")
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) <= width:
            lines[-1] += (" " if word.startswith("(") else "") + word
        else:
            lines.append(word)
    return lines


def count(value: object, noun: str) -> str:
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"


_DETAILS: tuple[Callable[[Run], str], ...] = (
    lambda run: str(run.task),
    lambda run: count(run.ranks, "rank"),
    lambda run: count(run.threads, "thread"),
    lambda run: f"batch {run.batch_size}",
    lambda run: str(run.precision),
    lambda run: kind(run),
    lambda run: f"seed {run.seed}",
    lambda run: str(run.started),
)


def table(runs: Sequence[Run], target: float | None = None) -> list[Row]:
    """The rows of a comparison as plain values; `COLUMNS` says how each is written. Absent facts are None."""
    rows: list[Row] = []
    for run, name in zip(runs, names(runs), strict=True):
        singles = baselines(run, runs)
        equal = [single for single in singles if single.threads == run.threads or kind(run) != "cpu"]
        largest = largest_phase(run)
        rows.append(
            {
                "label": name,
                "ranks": run.ranks,
                "threads": run.threads,
                "samples_per_second": speed(run),
                "spread": spread(run),
                "speedup": speedup(run, singles[0]) if singles else None,
                "efficiency": efficiency(run, equal[0]) if equal and run.strategy != "single" else None,
                "test_accuracy": accuracy(run),
                "seconds_to_target": seconds_to(run, target),
                "peak_memory_bytes": peak_memory(run),
                "largest_phase": largest[0] if largest else None,
                "largest_share": largest[1] if largest else None,
                "status": run.status,
                "reason": run.reason,
                "slow_rank": run.slow_rank,
                "note": note(run),
            }
        )
    return rows


def note(run: Run) -> str | None:
    """What a row says beside its figures: why there are none, or which rank holds the others up."""
    parts = []
    if run.status != "done":
        parts.append(f"{run.status}: {run.reason}" if run.reason else str(run.status))
    if run.slow_rank:
        behind = number(run.slow_rank.get("behind_ms"))
        lag = f", {behind:.1f} ms behind" if behind is not None else ""
        parts.append(f"{slow_one(run.slow_rank)} slow in {run.slow_rank.get('phase')}{lag}")
    return "; ".join(parts) or None


class Column(NamedTuple):
    """One column of the comparison, the same in the terminal and on the page."""

    key: str
    heading: str
    text: Callable[[Row], str]
    numeric: bool = True


def columns(rows: Sequence[Row], target: float | None = None) -> list[Column]:
    """The columns worth showing: notes only where a row has one, seconds to a target only when asked for."""
    unwanted = set()
    if target is None:
        unwanted.add("seconds_to_target")
    if not any(row["note"] for row in rows):
        unwanted.add("note")
    return [column for column in COLUMNS if column.key not in unwanted]


NOTHING = "-"


def _text(key: str, form: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: NOTHING if row[key] is None else form(row[key])


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def memory_text(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.0f} MiB"


def _speed_text(row: Row) -> str:
    middle = row["samples_per_second"]
    if not middle:
        return NOTHING
    if row["spread"] is None:
        return f"{middle:,.0f}"
    low, high = row["spread"]
    return f"{middle:,.0f} ±{50 * (high - low) / middle:.0f} %"


def _phase_text(row: Row) -> str:
    return f"{row['largest_phase']} {percent(row['largest_share'])}" if row["largest_phase"] else NOTHING


COLUMNS = (
    Column("label", "strategy", lambda row: str(row["label"]), numeric=False),
    Column("ranks", "ranks", _text("ranks", str)),
    Column("threads", "threads", _text("threads", str)),
    Column("samples_per_second", "samples/s", _speed_text),
    Column("speedup", "speed-up", _text("speedup", lambda value: f"{value:.2f}x")),
    Column("efficiency", "efficiency", _text("efficiency", percent)),
    Column("test_accuracy", "accuracy", _text("test_accuracy", lambda value: percent(value, 2))),
    Column("seconds_to_target", "to target", _text("seconds_to_target", lambda value: f"{value:.1f} s")),
    Column("peak_memory_bytes", "memory", _text("peak_memory_bytes", memory_text)),
    Column("largest_phase", "largest phase", _phase_text, numeric=False),
    Column("note", "note", _text("note", str), numeric=False),
)
