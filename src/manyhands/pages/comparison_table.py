"""The rows and columns of a comparison, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..record import first_loss
from ..record.run import Run
from ..record.slow_rank import slow_name
from .comparing import baselines, efficiency, names, speedup
from .figures import (
    accuracy,
    hosts,
    lost_share,
    memory_text,
    named_hosts,
    number,
    peak_memory,
    percent,
    seconds_to,
    speed,
    spread,
)
from .forecasts import FORECAST_LEGEND, forecast_error, forecast_speed, forecast_text

Figures = dict[str, Any]  # of one row
NOTHING = "-"


def comparison_rows(runs: Sequence[Run], target: float | None = None) -> list[Figures]:
    """One row per run as plain values; `COLUMNS` says how each is written. Absent facts are None."""
    rows: list[Figures] = []
    for run, name in zip(runs, names(runs), strict=True):
        singles = baselines(run, runs)
        equal = [single for single in singles if efficiency(run, single) is not None]
        rows.append(
            {
                "label": name,
                "ranks": run.ranks,
                "threads": run.threads,
                "hosts": named_hosts(hosts(run)) or None,
                "samples_per_second": speed(run),
                "spread": spread(run),
                "forecast": forecast_speed(run),
                "forecast_error": forecast_error(run),
                "speedup": speedup(run, singles[0]) if singles else None,
                "efficiency": efficiency(run, equal[0]) if equal and run.strategy != "single" else None,
                "test_accuracy": accuracy(run),
                "seconds_to_target": seconds_to(run, target),
                "peak_memory_bytes": peak_memory(run),
                "exact": _exact(run, singles),
                "lost_share": lost_share(run),
                "status": run.status,
                "note": _note(run),
            }
        )
    return rows


def _exact(run: Run, singles: Sequence[Run]) -> str | None:
    """`yes` and `no`; `yes?` is a promise that nobody could check before the start; a first loss that differs breaks it."""
    if run.exact is None or run.status not in ("done", "stopped"):
        return None
    if not run.exact or any(first_loss.differing(run, single) for single in singles[:1]):
        return "no"
    return "yes?" if run.exact_checked is False else "yes"


def _note(run: Run) -> str | None:
    """What a row says beside its figures: why there are none, or which rank is slow."""
    parts = []
    if run.status != "done":
        parts.append(f"{run.status}: {run.reason}" if run.reason else str(run.status))
    if run.slow_rank:
        behind = number(run.slow_rank.get("behind_ms"))
        lag = f", {behind:.1f} ms behind" if behind is not None else ""
        parts.append(f"{slow_name(run.slow_rank)} slow in {run.slow_rank.get('phase')}{lag}")
    return "; ".join(parts) or None


class Column(NamedTuple):
    key: str
    heading: str
    text: Callable[[Figures], str]
    numeric: bool = True
    meaning: str = ""  # where the heading is too short to tell


def legend(shown: Sequence[Column], rows: Sequence[Figures]) -> list[str]:
    """What short headings and marks mean."""
    meanings = [f"{column.heading}: {column.meaning}" for column in shown if column.meaning]
    unchecked = any(row["exact"] == "yes?" for row in rows) and any(column.key == "exact" for column in shown)
    return [*meanings, *(["yes?: promised, but it could not be checked before the start"] if unchecked else [])]


def columns(rows: Sequence[Figures], target: float | None = None) -> list[Column]:
    """The columns worth showing: notes and forecasts only where a row has one, hosts where a row has several, seconds to a
    target only when asked for."""
    wanted = {
        "note": any(row["note"] for row in rows),
        "forecast": any(row["forecast"] is not None for row in rows),
        "seconds_to_target": target is not None,
        "hosts": any("," in (row["hosts"] or "") for row in rows),
    }
    return [column for column in COLUMNS if wanted.get(column.key, True)]


def _known(key: str, form: Callable[[Any], str] = str) -> Callable[[Figures], str]:
    return lambda row: NOTHING if row[key] is None else form(row[key])


def _speed(row: Figures) -> str:
    middle = row["samples_per_second"]
    if not middle:
        return NOTHING
    if row["spread"] is None:
        return f"{middle:,.0f}"
    low, high = row["spread"]
    return f"{middle:,.0f} ±{50 * (high - low) / middle:.0f} %"


def _forecast(row: Figures) -> str:
    return NOTHING if row["forecast"] is None else forecast_text(row["forecast"], row["forecast_error"])


COLUMNS = (
    Column("label", "strategy", _known("label"), numeric=False),
    Column("ranks", "ranks", _known("ranks")),
    Column("threads", "threads", _known("threads")),
    Column("hosts", "hosts", _known("hosts"), numeric=False),
    Column("samples_per_second", "samples/s", _speed),
    Column("forecast", "forecast", _forecast, True, FORECAST_LEGEND),
    Column("speedup", "speed-up", _known("speedup", lambda ratio: f"{ratio:.2f}x")),
    Column("efficiency", "efficiency", _known("efficiency", percent)),
    Column("test_accuracy", "accuracy", _known("test_accuracy", lambda share: percent(share, 2))),
    Column("seconds_to_target", "to target", _known("seconds_to_target", lambda seconds: f"{seconds:.1f} s")),
    Column("peak_memory_bytes", "memory", _known("peak_memory_bytes", memory_text)),
    Column("exact", "exact", _known("exact"), False, "ends with the weights that one process would train"),
    Column(
        "lost_share",
        "lost",
        _known("lost_share", percent),
        True,
        "share of each step lost to load, communication and wait",
    ),
    Column("note", "note", _known("note"), numeric=False),
)
