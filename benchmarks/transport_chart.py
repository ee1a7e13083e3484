"""Draws the chart of docs/benchmarks.md from what `transport.py --json FILE` wrote.

    python benchmarks/transport_chart.py FILE docs/images/transport.svg

One panel for the time of a call and one for its bandwidth, both against size on logarithmic axes; medians of the rounds.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from svg_chart import COLOURS, Axis, Line, Panel, chart

SERIES = {
    ("all_reduce", "manyhands_shm"): (COLOURS[0], "", "all_reduce, manyhands_shm"),
    ("all_reduce", "gloo"): (COLOURS[1], "", "all_reduce, gloo"),
    ("message", "manyhands_shm"): (COLOURS[0], "4 4", "there and back, manyhands_shm"),
    ("message", "gloo"): (COLOURS[1], "4 4", "there and back, gloo"),
}
SIZES = {1 << 10: "1 KB", 1 << 16: "64 KB", 1 << 20: "1 MB", 1 << 26: "64 MB"}


def medians(record: dict, what: str, backend: str) -> list[tuple[int, float]]:
    """(bytes, seconds) of every size."""
    found = [(name.split(), times) for name, times in record["trials"].items()]
    return [(int(size), statistics.median(times[backend])) for (kind, size), times in found if kind == what]


def drawing(record: dict) -> str:
    times, rates = [], []
    for key, (colour, dashes, name) in SERIES.items():
        points = medians(record, *key)
        ways = 2 if key[0] == "message" else 1  # a message travels twice: there and back
        times.append(Line(name, [(size, 1e6 * seconds) for size, seconds in points], colour, dashes))
        rates.append(Line(name, [(size, ways * size / seconds / 1e9) for size, seconds in points], colour, dashes))
    size = Axis("", True, list(SIZES), lambda value: SIZES[int(value)])
    return chart(
        "manyhands_shm against gloo",
        [
            Panel("time of a call", size, Axis("", True, text="{:,.6g} µs".format), times),
            Panel("bandwidth", size, Axis("", True, text="{:g} GB/s".format), rates),
        ],
    )


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python benchmarks/transport_chart.py FILE.json OUT.svg")
    Path(sys.argv[2]).write_text(drawing(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
