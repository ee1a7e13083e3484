"""What `manyhands plan --score` prints: how forecasts turned out, by strategy and in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .terminal import amount, console, table

HEADINGS = ("strategy", "runs", "median", "90th pct", "held", "best", "memory")
LEGEND = (
    "median, 90th pct: half and nine tenths of the forecasts of samples/s were off by less",
    "held: share of the intervals that contained what was measured; 80 % is meant",
    "best: in how many of the comparisons that it won, the forecasts had picked it",
    "memory: median error of the memory forecast",
)
FURTHEST = 3  # forecasts that are named


def show_score(result: Mapping[str, Any]) -> None:
    """The table, what its headings mean, how often the best was picked, and the forecasts that were furthest off."""
    out, overall = console(), result["summary"]
    if not overall["count"]:
        out.print(_nothing(overall))
        return
    filled = table(HEADINGS, HEADINGS[1:])
    for name, figures in result["by_strategy"].items():
        filled.add_row(*_cells(name, figures))
    filled.add_row(*_cells("all", overall))
    out.print(filled)
    for line in LEGEND:
        out.print(line)
    out.print()
    for sentence in _sentences(overall):
        out.print(sentence)
    for one in sorted(result["scores"], key=_off)[:FURTHEST]:
        out.print(
            f"{_signed(one['error']):>7}  {one['task']}, {one['strategy']}, {amount(one['ranks'], 'rank')}: "
            f"forecast {one['forecast']:,.0f}, measured {one['measured']:,.0f}"
        )


def _off(one: Mapping[str, Any]) -> tuple[float, str]:
    return -abs(one["error"]), str(one["folder"])


def _nothing(overall: Mapping[str, Any]) -> str:
    if not overall["forecasts"]:
        return "no forecasts are kept here; `manyhands plan TASK` makes some, later runs of TASK score them"
    kept = amount(overall["forecasts"], "forecast")
    return f"{kept} kept, but no finished run matches one yet; run one of them: `manyhands compare TASK`"


def _cells(name: str, figures: Mapping[str, Any]) -> list[str]:
    best = figures["best"]
    return [
        name,
        f"{figures['count']:,}",
        _share(figures["median_error"]),
        _share(figures["p90_error"]),
        _share(figures["coverage"]),
        f"{best['strict']} of {best['comparisons']}" if best["comparisons"] else "-",
        _share(figures["median_memory_error"]),
    ]


def _sentences(overall: Mapping[str, Any]) -> list[str]:
    best, bias = overall["best"], overall["bias"]
    said = []
    if best["comparisons"]:
        said.append(
            f"The forecasts picked the fastest row in {best['strict']} of {amount(best['comparisons'], 'comparison')}, "
            f"one within the noise of it in {best['within_noise']}."
        )
    if overall["refused_but_ran"]:
        said.append(f"Ruled out by a forecast, but finished: {amount(overall['refused_but_ran'], 'run')}.")
    side = "above" if bias > 0 else "below"
    lean = f"{_share(abs(bias))} {side}" if abs(bias) >= 0.005 else "level with"
    said.append(f"In the median, forecasts lie {lean} what was measured. Furthest off:")
    return said


def _share(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if value < 0.0995 else f"{100 * value:,.0f} %"


def _signed(error: float) -> str:
    return f"{100 * error:+,.0f} %"
