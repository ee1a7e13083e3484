"""Forecast beside measured: what was forecast of a run, how far off that was, and how forecasts did in all."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ..record.run import Run
from .figures import number, percent, speed
from .phrases import amount, capital

FORECAST_LEGEND = "samples/s that `manyhands plan` expected, and how far off that was"


def forecast_speed(run: Run) -> float | None:
    """Samples per second as forecast before the run started."""
    known = number((run.forecast or {}).get("samples_per_second"))
    return known if known and known > 0 else None


def forecast_error(run: Run) -> float | None:
    """Signed, as a share of what was measured; None unless the run is done."""
    expected, measured = forecast_speed(run), speed(run)
    return expected / measured - 1 if expected and measured and run.status == "done" else None


def interval_held(run: Run) -> bool | None:
    """Whether the forecast's interval contains what was measured; None without an interval."""
    known, measured = (run.forecast or {}).get("interval") or [], speed(run)
    ends = [number(end) for end in known]
    if len(ends) != 2 or ends[0] is None or ends[1] is None or measured is None:
        return None
    return ends[0] <= measured <= ends[1]


def forecast_text(expected: float, error: float | None) -> str:
    """`12,100 (-3 %)`."""
    if error is None:
        return f"{expected:,.0f}"
    rounded = round(100 * error)
    return f"{expected:,.0f} ({rounded:+d} %)" if rounded else f"{expected:,.0f} (0 %)"


def forecast_sentence(runs: Sequence[Run]) -> str | None:
    """How many forecasts there were, how far off they were in the middle, and how many intervals held."""
    told = [(run, error) for run in runs if (error := forecast_error(run)) is not None]
    if not told:
        return None
    off = f"{'off by' if len(told) == 1 else 'a median error of'} {percent(median(abs(error) for _, error in told))}"
    intervals = [held for run, _ in told if (held := interval_held(run)) is not None]
    said = f"{capital(amount(len(told), 'forecast'))}: {off}"
    if len(intervals) == 1:
        return f"{said}; the interval {'held' if intervals[0] else 'did not hold'}."
    return f"{said}; {sum(intervals)} of {len(intervals)} intervals held." if intervals else f"{said}."


def forecast_fact(run: Run) -> str | None:
    """All there is about the forecast of one run."""
    expected, known = forecast_speed(run), run.forecast or {}
    if expected is None:
        return None
    ends = [end for item in known.get("interval") or [] if (end := number(item)) is not None]
    between = f" ({ends[0]:,.0f} to {ends[1]:,.0f})" if len(ends) == 2 else ""
    said = [f"{expected:,.0f} samples/s{between}", known.get("basis"), f"made {known.get('made', 'before the run')}"]
    return ", ".join(str(part) for part in said if part)
