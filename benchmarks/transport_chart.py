"""Draws the chart of docs/benchmarks.md from what `transport.py --json FILE` wrote.

    python benchmarks/transport_chart.py FILE docs/images/transport.svg

One panel for the time of a call and one for its bandwidth, both against size on logarithmic axes; medians of the rounds.
Colours are readable on a light and on a dark page.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 240, 84, 40, 96
SERIES = {
    ("all_reduce", "manyhands_shm"): ("#2f7ed8", "", "all_reduce, manyhands_shm"),
    ("all_reduce", "gloo"): ("#d9822b", "", "all_reduce, gloo"),
    ("message", "manyhands_shm"): ("#2f7ed8", "4 4", "there and back, manyhands_shm"),
    ("message", "gloo"): ("#d9822b", "4 4", "there and back, gloo"),
}
Points = list[tuple[int, float]]


def medians(record: dict, what: str, backend: str) -> Points:
    """(bytes, seconds) of every size."""
    found = [(name.split(), times) for name, times in record["trials"].items()]
    return [(int(size), statistics.median(times[backend])) for (kind, size), times in found if kind == what]


def panel(at: int, title: str, lines: list[tuple[str, str, Points]], label: Callable[[int], str]) -> list[str]:
    sizes = [size for _, _, points in lines for size, _ in points]
    values = [value for _, _, points in lines for _, value in points]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    first, last = math.log2(min(sizes)), math.log2(max(sizes))

    def x(size: float) -> float:
        return at + (math.log2(size) - first) / (last - first) * WIDTH

    def y(value: float) -> float:
        return TOP + (high - math.log10(value)) / (high - low) * HEIGHT

    drawn = [f'<text class="title" x="{at}" y="{TOP - 16}">{title}</text>']
    for power in range(low, high + 1):
        drawn.append(f'<path class="grid" d="M{at} {y(10.0**power):.1f}h{WIDTH}"/>')
        drawn.append(f'<text text-anchor="end" x="{at - 6}" y="{y(10.0**power) + 4:.1f}">{label(power)}</text>')
    for name, size in (("1 KB", 1 << 10), ("64 KB", 1 << 16), ("1 MB", 1 << 20), ("64 MB", 1 << 26)):
        if min(sizes) <= size <= max(sizes):
            drawn.append(f'<text text-anchor="middle" x="{x(size):.1f}" y="{TOP + HEIGHT + 18}">{name}</text>')
    for colour, dashes, points in lines:
        path = "L".join(f"{x(size):.1f} {y(value):.1f}" for size, value in points)
        drawn.append(f'<path class="line" stroke="{colour}" stroke-dasharray="{dashes}" d="M{path}"/>')
    return drawn


def chart(record: dict) -> str:
    curves = [(colour, dashes, medians(record, *key)) for key, (colour, dashes, _) in SERIES.items()]
    rates = [
        (colour, dashes, [(size, (2 if dashes else 1) * size / seconds / 1e9) for size, seconds in points])
        for colour, dashes, points in curves  # a message travels twice: there and back
    ]
    times = [(colour, dashes, [(size, 1e6 * seconds) for size, seconds in points]) for colour, dashes, points in curves]
    body = panel(LEFT, "time of a call", times, lambda power: f"{10**power:,} µs")
    body += panel(LEFT + WIDTH + GAP, "bandwidth", rates, lambda power: f"{10.0**power:g} GB/s")
    for number, (colour, dashes, name) in enumerate(SERIES.values()):
        left, top = LEFT + number % 2 * 240, TOP + HEIGHT + 46 + number // 2 * 20
        body.append(f'<path class="line" stroke="{colour}" stroke-dasharray="{dashes}" d="M{left} {top - 4}h26"/>')
        body.append(f'<text x="{left + 32}" y="{top}">{name}</text>')
    style = (
        "text{font:12px system-ui,sans-serif;fill:#555}.title{font-weight:600}.grid{stroke:#8886;stroke-width:1}"
        ".line{fill:none;stroke-width:2}@media(prefers-color-scheme:dark){text{fill:#bbb}}"
    )
    width, height = LEFT + 2 * WIDTH + GAP + 24, TOP + HEIGHT + 80
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    return "\n".join(
        [head, "<title>manyhands_shm against gloo</title>", f"<style>{style}</style>", *body, "</svg>", ""]
    )


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python benchmarks/transport_chart.py FILE.json OUT.svg")
    Path(sys.argv[2]).write_text(chart(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
