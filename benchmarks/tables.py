"""What every benchmark prints: a table for people, JSON for machines, and where it was measured."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.record.run import environment


def show(title: str, rows: Sequence[Mapping[str, Any]], **facts: Any) -> None:
    """Print rows of equal keys as a table, then everything as one JSON line."""
    headings = list(rows[0])
    cells = [[_text(row[heading]) for heading in headings] for row in rows]
    widths = [max(len(heading), *(len(line[number]) for line in cells)) for number, heading in enumerate(headings)]
    where = environment()
    print(f"\n{title}")
    print(
        f"torch {where['torch']}, Python {where['python']}, {where['cpu']} x {where['cores']}, {where['gpu'] or 'no GPU'}"
    )
    for line in [headings, *cells]:
        print(
            "  ".join(
                f"{cell:<{width}}" if number == 0 else f"{cell:>{width}}"
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
        )
    print(json.dumps({"title": title, "environment": where, **facts, "rows": list(rows)}))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3f}"
    return str(value)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean's 95 % interval, by the normal approximation."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, mean
    half = 1.96 * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The median's 95 % interval by ranks: it assumes nothing about how noise is spread."""
    ordered, reach = sorted(values), 0.98 * len(values) ** 0.5
    middle = (len(values) - 1) / 2
    return ordered[max(0, math.floor(middle - reach))], ordered[min(len(values) - 1, math.ceil(middle + reach))]
