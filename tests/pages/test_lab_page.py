"""The page of an experiment: the verdict in words and sign, figures beside each other, every string only text."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from manyhands.pages.lab_charts import curves
from manyhands.pages.lab_page import figure_text, lab_page, seeds_text, write_page
from tests.lab_result import figure, made_up
from tests.pages.test_browser import OBJECTIONS
from tests.pages.test_page import data_of, words_of

EVIL = '</script><script>window.hurt = 1</script><img src=x onerror="window.hurt = 1">'


@pytest.fixture(scope="module")
def text() -> str:
    return lab_page(made_up())


@pytest.mark.parametrize(
    ("holds", "sign", "words"),
    [
        (True, "✓", "The claim holds here"),
        (False, "✗", "The claim does not hold here"),
        (None, "?", "Whether the claim holds cannot be told here"),
    ],
)
def test_the_verdict_is_told_by_sign_and_words(holds: bool | None, sign: str, words: str) -> None:
    text = lab_page(made_up(holds=holds, curves=[]))
    assert f'<span aria-hidden="true">{sign}</span> {words}</p>' in text
    assert text.index(words) < text.index("published claim")
    assert 'id="curves"' not in text


def test_published_stands_beside_measured_with_its_spread(text: str) -> None:
    said = re.sub(r"\s+", " ", words_of(text))
    assert "0 workers 6.40 6.30 6.10 to 6.60 72.80 71.30 70.90 to 74.20 99.08 % 99.08 % 99.04 % to 99.10 %" in said
    assert "8 workers loader_workers: 8 processes need 8 cores (found 2) - - - -" in said
    assert "the median of 3 seeds, with the lowest and the highest" in said
    assert "Quick run" not in said
    for fact in ("A processor", "2.13.0", "2026-03-02", "manyhands lab loader-workers", "mnist:slow"):
        assert fact in said, fact
    assert 'href="./0-workers-ab12/seed-2/run.json"' in text


def test_a_column_without_published_figures_has_none() -> None:
    result = made_up(published=[{"row": "0 workers", "seconds": 72.8}])
    assert lab_page(result).count(">published</th>") == 1


def test_a_quick_run_says_what_is_reduced() -> None:
    note = "1 epoch of 3,200 samples instead of 10 of 60,000"
    said = words_of(lab_page(made_up(quick=True, note=note, command="manyhands lab loader-workers --quick")))
    assert f"Quick run, reduced:  {note}" in said
    assert said.count("manyhands lab loader-workers") == 2  # in full, and as it was


def test_curves_are_drawn_with_published_lines_grey_and_their_figures_as_a_table(text: str) -> None:
    short, long = data_of(text)
    total, published = short["data"]
    assert (total["x"], total["y"], total["error_y"]["array"]) == ([0, 2, 4], [71, 35, 18], [3, 2, 0])
    assert (published["name"], published["line"]["color"]) == ("total (published)", "var(--muted)")
    assert published["line"]["dash"] == "dash"
    assert short["layout"]["xaxis"]["ticktext"] == ["0", "2", "4"]
    assert long["layout"]["xaxis"]["type"] == "log"
    looks = [(one["line"]["color"], one["line"]["dash"]) for one in long["data"] if "name" in one]
    assert len(set(looks)) == 4
    assert len(long["data"]) == 4 + 8  # thin lines at both ends instead of bars at thirty points
    assert "There are too few points here for a curve." in text
    assert "<td>35 (34 to 37)</td><td>34.96</td>" in text


def test_lines_may_stop_where_others_go_on_and_lack_figures() -> None:
    """A line of one point, figures that are not finite, zero as the lowest, and no line at all."""
    lines: list[dict[str, Any]] = [
        {"name": "short", "published": False, "points": [[2.0, 1.0, 0.0, 1.0]]},
        {"name": "holes", "published": False, "points": [[4.0, 2.0, None, None], [1.0, None, None, None]]},
        {"name": "nothing", "published": False, "points": [[1.0, None, None, None]]},
    ]
    curve = {"title": "t", "x": "x", "y": "y", "logarithmic": "xy", "lines": lines}
    [chart] = data_of(lab_page(made_up(curves=[curve])))
    assert [one["name"] for one in chart["data"]] == ["short", "holes"]
    assert chart["data"][0]["error_y"]["arrayminus"] == [1.0]


def test_sixteen_powers_of_ten_get_a_handful_of_ticks() -> None:
    """Every 1, 2 and 5 of each was written over the next."""
    lines = [{"name": "a", "published": False, "points": [[1, 1e-16, 1e-16, 1e-16], [2, 0.5, 0.5, 0.5]]}]
    [chart] = curves([{"title": "t", "x": "x", "y": "y", "logarithmic": "y", "lines": lines}])
    assert chart.drawing is not None
    axis = chart.drawing.figure.layout["yaxis"]
    powers = [round(math.log10(tick)) for tick in axis["tickvals"]]
    assert powers == list(range(powers[0], powers[-1] + 1, 2))
    assert axis["ticktext"][powers.index(-16)] == "10<sup>-16</sup>"
    assert axis["ticktext"][powers.index(-2)] == "0.01"


def test_points_above_one_place_are_no_curve() -> None:
    """A quick run of one epoch drew seven marks on top of each other."""
    lines = [{"name": name, "published": False, "points": [[1, 7.8, 7.8, 7.8]]} for name in "abc"]
    curve = {"title": "By epoch", "x": "epoch", "y": "%", "logarithmic": "", "lines": lines}
    text = lab_page(made_up(curves=[curve]))
    assert data_of(text) == []
    assert "<strong>By epoch.</strong> There are too few points here for a curve." in text


def test_nothing_was_measured() -> None:
    """Every row was refused: there is no date, no run, no line, and still a page that says why."""
    measured = [{"row": "only", "problem": "ddp needs 2 cores (found 1)", "failed": False}]
    said = words_of(lab_page(made_up(measured=measured, runs=[], date=None, holds=None, published=[])))
    for expected in ("ddp needs 2 cores (found 1)", "No run ended well.", "cannot be told here", "unknown"):
        assert expected in said


def test_every_string_is_only_text() -> None:
    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoil(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [spoil(item, key) for item in value]
        return EVIL if isinstance(value, str) and key not in ("key", "form", "logarithmic") else value

    text = lab_page(spoil(copy.deepcopy(made_up(quick=True))))
    outside = re.sub(r"<script\b.*?</script>", "", text, flags=re.DOTALL)
    assert "<img" not in outside
    assert text.count("<script") == 4
    assert not re.search(r'href="(?!\./|#|data:,)', outside)


def test_a_folder_that_looks_like_an_address_stays_a_relative_link() -> None:
    runs = [{**made_up()["runs"][0], "folders": ["javascript:alert(1)", "a b/#?"]}]
    text = lab_page(made_up(runs=runs, curves=[]))
    assert 'href="./javascript%3Aalert%281%29/run.json"' in text
    assert 'href="./a%20b/%23%3F/run.json"' in text


def test_figures_and_seeds_in_words() -> None:
    assert figure_text(0.95304, ".2%") == "95.30 %"
    assert figure_text(1234.5, ",.0f") == "1,234"
    assert (figure_text(None, ".2f"), figure_text(float("nan"), ".2f")) == ("", "")
    assert (
        seeds_text({"measured": [{"row": "a", "x": figure(1.0), "problem": None}]}) == "one seed, so no spread is known"
    )
    mixed = {"measured": [{"row": "a", "x": figure(1.0)}, {"row": "b", "x": figure(1.0, 2.0, 3.0)}]}
    assert seeds_text(mixed) == "the median of 1 to 3 seeds"
    assert seeds_text({"measured": [{"row": "a", "problem": "no"}]}) == "nothing"


def test_what_was_stored_makes_the_same_page(text: str, tmp_path: Path) -> None:
    stored = json.loads(json.dumps(made_up()))
    assert write_page(stored, tmp_path / "new" / "report.html").read_text(encoding="utf-8") == text


@pytest.mark.browser
def test_it_is_drawn_on_a_phone_in_the_dark_and_on_a_desk(browser: Any, tmp_path: Path) -> None:
    page = write_page(made_up(), tmp_path / "report.html")
    for width, dark in ((375, True), (1200, False)):
        browser.open(page, width, dark)
        drawn = browser.ask("[...document.querySelectorAll('.plot')].map(plot => !!plot.querySelector('.main-svg'))")
        assert drawn == [True, True]
        assert browser.problems() == []
        assert browser.ask(OBJECTIONS) == []
        browser.ask("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert browser.ask("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"
        headings = browser.ask("getComputedStyle(document.querySelector('#figures-table thead')).display")
        assert headings == ("none" if width == 375 else "table-header-group")
        label = browser.ask("getComputedStyle(document.querySelector('#figures-table td'), '::before').content")
        assert label == ('"load ms, published"' if width == 375 else "none")
