"""Line charts as SVG for the docs, drawn by hand: no dependency, a few kilobytes, readable on light and on dark pages.

    Path("speed.svg").write_text(chart("Speed", [Panel("", Axis("ranks", True), Axis("speed-up"), [Line("ddp", points)])]))

Lines differ in colour, dash and mark; a published one is grey and dashed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product

WIDTH, HEIGHT, LEFT, TOP, GAP, BELOW = 330, 240, 84, 40, 96, 52
LETTER = 6.4  # pixels of one, about
MARKED = 20  # points that have room for marks and bars
COLOURS = ("#2f7ed8", "#cf7622", "#2b9763", "#b565b5", "#c9485b", "#1f93a5", "#8d7a1e", "#7a74d8")
GREY = "#808080"
PUBLISHED = " (published)"  # ends such a name
DASHES = ("", "6 4", "2 3", "8 3 2 3", "12 4")
MARKS = (  # around the point
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.5-3.5h7v7h-7z",
    "M0-5L5 0L0 5L-5 0z",
    "M0-4.5L4.5 3.5h-9z",
    "M-4-4L4 4M-4 4L4-4",
)
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#555}.title{font-weight:600}.grid{stroke:#8886;stroke-width:1}"
    ".line{fill:none;stroke-width:2}.bar{fill:none;stroke-width:1.2}.band{stroke:none;fill-opacity:.15}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}}"
)


@dataclass(frozen=True)
class Line:
    """Points are (x, y), or (x, y, lowest, highest)."""

    name: str
    points: Sequence[Sequence[float]]
    colour: str = ""  # "": by its place among the lines
    dashes: str | None = None
    published: bool = False


@dataclass(frozen=True)
class Axis:
    label: str
    logarithmic: bool = False
    ticks: Sequence[float] | None = None
    text: Callable[[float], str] = "{:,.6g}".format


@dataclass(frozen=True)
class Panel:
    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]


class Span:
    """Where values lie between the two ends of an axis, and which of them are named."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float, whole: bool):
        self.axis, self.start, self.end = axis, start, end
        self.low, self.high = self._at(min(values)), self._at(max(values))
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        if whole:  # up to the next line of the grid, so that no curve touches the frame
            step = 1.0 if axis.logarithmic and self.high - self.low > 1 else _step(self.high - self.low)
            self.low, self.high = step * math.floor(self.low / step), step * math.ceil(self.high / step)
        self.ticks = [
            tick for tick in axis.ticks or self._found() if self.low - 1e-9 <= self._at(tick) <= self.high + 1e-9
        ]

    def _at(self, value: float) -> float:
        return math.log10(value) if self.axis.logarithmic else value

    def _found(self) -> list[float]:
        if not self.axis.logarithmic:
            step = _step(self.high - self.low)
            return [step * place for place in range(math.floor(self.low / step), math.ceil(self.high / step) + 1)]
        digits = (1,) if self.high - self.low > 2 else (1, 2, 5)
        return [d * 10.0**power for power, d in product(range(math.floor(self.low), math.ceil(self.high) + 1), digits)]

    def __call__(self, value: float) -> float:
        return self.start + (self._at(value) - self.low) / (self.high - self.low) * (self.end - self.start)


def _step(span: float) -> float:
    """1, 2 or 5 times a power of ten: about five of them make the span."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= span / 5 * 0.999)


def chart(name: str, panels: Sequence[Panel]) -> str:
    """The panels beside each other, and under them one legend for all: their lines are the same."""
    width = 2 * WIDTH + GAP if len(panels) == 1 else len(panels) * (WIDTH + GAP) - GAP
    body: list[str] = []
    for number, panel in enumerate(panels):
        body += _panel(panel, LEFT + number * (WIDTH + GAP), width if len(panels) == 1 else WIDTH)
    longest = 48 + LETTER * max(len(line.name) for line in panels[0].lines)
    columns = max(1, min(len(panels[0].lines), int(width // longest)))
    legend = _legend(panels[0].lines, columns, width / columns)
    height = TOP + HEIGHT + BELOW + 20 * math.ceil(len(panels[0].lines) / columns)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + width + 24} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(name)}</title>", f"<style>{STYLE}</style>", *body, *legend, "</svg>", ""])


def _numbered(lines: Sequence[Line]) -> list[tuple[int, Line]]:
    """What was published has the mark of the line that was measured for it."""
    names = list(dict.fromkeys(line.name.removesuffix(PUBLISHED) for line in lines))
    return [(names.index(line.name.removesuffix(PUBLISHED)), line) for line in lines]


def _look(line: Line, index: int) -> tuple[str, str, str]:
    """Colour, dashes, mark."""
    colour = line.colour or (GREY if line.published else COLOURS[index % len(COLOURS)])
    dashes = line.dashes if line.dashes is not None else "5 4" if line.published else DASHES[index % len(DASHES)]
    return colour, dashes, MARKS[index % len(MARKS)]


def _panel(panel: Panel, left: float, width: float) -> list[str]:
    points = [point for line in panel.lines for point in line.points]
    x = Span(panel.x, [point[0] for point in points], left + 8, left + width - 8, whole=False)
    y = Span(panel.y, [value for point in points for value in point[1:]], TOP + HEIGHT, TOP, whole=True)
    drawn = [f'<text class="title" x="{left}" y="{TOP - 16}">{escape(panel.title)}</text>']
    for tick in y.ticks:
        drawn.append(f'<path class="grid" d="M{left} {y(tick):.1f}h{width}"/>')
        drawn.append(f'<text text-anchor="end" x="{left - 6}" y="{y(tick) + 4:.1f}">{escape(y.axis.text(tick))}</text>')
    bottom = TOP + HEIGHT
    drawn += [
        f'<text text-anchor="middle" x="{x(tick):.1f}" y="{bottom + 18}">{escape(x.axis.text(tick))}</text>'
        for tick in x.ticks
    ]
    if panel.x.label:
        drawn.append(
            f'<text text-anchor="middle" x="{left + width / 2}" y="{bottom + 36}">{escape(panel.x.label)}</text>'
        )
    if panel.y.label:
        middle = f"{left - 62} {TOP + HEIGHT / 2}"
        drawn.append(
            f'<text text-anchor="middle" transform="translate({middle})rotate(-90)">{escape(panel.y.label)}</text>'
        )
    for index, line in _numbered(panel.lines):
        drawn += _line(line, index, x, y)
    return drawn


def _line(line: Line, index: int, x: Span, y: Span) -> list[str]:
    colour, dashes, mark = _look(line, index)
    path = "L".join(f"{x(point[0]):.1f} {y(point[1]):.1f}" for point in line.points)
    drawn = [f'<path class="line" stroke="{colour}" stroke-dasharray="{dashes}" d="M{path}"/>']
    spread = [(x(px), y(low), y(high)) for px, _, low, high in (p for p in line.points if len(p) == 4) if low != high]
    if len(line.points) > MARKED:
        if spread:
            ends = [*((px, high) for px, _, high in spread), *((px, low) for px, low, _ in reversed(spread))]
            edge = "L".join(f"{px:.1f} {py:.1f}" for px, py in ends)
            drawn.insert(0, f'<path class="band" fill="{colour}" d="M{edge}z"/>')
        return drawn
    for px, low, high in spread:
        drawn.append(
            f'<path class="bar" stroke="{colour}" d="M{px:.1f} {low:.1f}V{high:.1f}m-4 0h8M{px - 4:.1f} {low:.1f}h8"/>'
        )
    return [*drawn, *(_mark(mark, colour, line.published, x(point[0]), y(point[1])) for point in line.points)]


def _mark(mark: str, colour: str, published: bool, x: float, y: float) -> str:
    fill = "none" if published or "z" not in mark else colour
    return (
        f'<path stroke="{colour}" stroke-width="1.5" fill="{fill}" transform="translate({x:.1f} {y:.1f})" d="{mark}"/>'
    )


def _legend(lines: Sequence[Line], columns: int, width: float) -> list[str]:
    drawn = []
    for place, (index, line) in enumerate(_numbered(lines)):
        colour, dashes, mark = _look(line, index)
        left, top = LEFT + place % columns * width, TOP + HEIGHT + BELOW + 10 + place // columns * 20
        drawn.append(f'<path class="line" stroke="{colour}" stroke-dasharray="{dashes}" d="M{left:.1f} {top - 4}h30"/>')
        if len(line.points) <= MARKED:
            drawn.append(_mark(mark, colour, line.published, left + 15, top - 4))
        drawn.append(f'<text x="{left + 38:.1f}" y="{top}">{escape(line.name)}</text>')
    return drawn
