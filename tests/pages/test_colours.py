"""The colours of the page stand out from the surface, and apart from each other for every kind of eyes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from importlib.resources import files

import pytest

from manyhands.record.run import PHASES


def palettes() -> dict[str, dict[str, str]]:
    css = files("manyhands.pages").joinpath("templates", "page.css").read_text()
    light, dark = css.split("@media screen and (prefers-color-scheme: dark)")[:2]
    read = {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
        for name, part in (("light", light), ("dark", dark.split("\n}\n")[0]))
    }
    assert set(read["light"]) == set(read["dark"])
    return read


def linear(colour: str) -> list[float]:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_marks_stand_out_from_the_surface(theme: str) -> None:
    colours = palettes()[theme]
    for name in ("text", "muted", "bad", "focus"):
        assert contrast(colours[name], colours["surface"]) >= 4.5, name
    marks = [name for name in colours if name.startswith(("series-", "phase-"))] + ["accent", "baseline"]
    assert len(marks) == 8 + len(PHASES) + 2
    for name in marks:
        assert contrast(colours[name], colours["surface"]) >= 3, name
    for cell in ("scale-low", "scale-high"):  # figures are written into the cells
        assert contrast(colours["text"], colours[cell]) >= 4.5, cell


# How eyes without red, green or blue cones see linear red, green and blue (Machado, Oliveira and Fernandes, 2009).
EYES = {
    "every cone": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "no green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "no blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def dot(row: Sequence[float], column: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(row, column, strict=True))


def lab(colour: str, eyes: str) -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as these eyes see it: distances there are those people notice."""
    seen = [min(1.0, max(0.0, dot(row, linear(colour)))) for row in EYES[eyes]]
    to_xyz = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8729))
    x, y, z = (math.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (dot(r, seen) for r in to_xyz))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("group", ["series-", "phase-"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_stay_apart_for_every_kind_of_eyes(theme: str, group: str, eyes: str) -> None:
    colours = {name: value for name, value in palettes()[theme].items() if name.startswith(group)}
    for first, second in itertools.combinations(colours, 2):
        distance = math.dist(lab(colours[first], eyes), lab(colours[second], eyes))
        assert distance > 12, (first, second, distance)
