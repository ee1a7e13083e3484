"""Runs in a notebook: readable where frames are stripped, and nothing of a record becomes code."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from manyhands.pages.notebook import BESIDE, charts, notebook
from manyhands.pages.page import page
from manyhands.record.run import Run

from .conftest import make_run

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def frame(html: str) -> str:
    """What the one frame in it shows."""
    [source] = re.findall(r'<iframe [^>]*srcdoc="([^"]*)"></iframe>', html)
    return unescape(source)


def test_sentences_and_table_stand_outside_the_frame(runs: list[Run]) -> None:
    outside = re.sub(r"<iframe.*</iframe>", "", notebook(runs), flags=re.DOTALL)
    assert "faster than one process" in outside
    assert outside.count("<tr><td") == len(runs)
    assert all(f">{run.strategy}" in outside for run in runs)
    assert "<script" not in outside


def test_a_record_cannot_reach_the_notebook() -> None:
    html = make_run("single", 1000.0, task=EVIL, options={"name": EVIL}, notes=[EVIL])._repr_html_()
    outside = re.sub(r"<iframe.*</iframe>", "", html, flags=re.DOTALL)
    assert "<script" not in outside
    assert "<img" not in outside
    assert re.findall('sandbox="(.*?)"', html) == ["allow-scripts"], "no origin, no forms, no way to the top"
    assert "<script>alert" not in frame(html)
    assert "default-src 'none'" in frame(html)


def test_the_frame_holds_the_charts_alone(runs: list[Run]) -> None:
    """What is hidden is named as the report names it; else a heading would stand there twice."""
    text = page(runs)
    for name in re.findall(r"#([a-z]+)", BESIDE):
        assert f'id="{name}"' in text
    assert BESIDE in frame(charts(runs)._repr_html_())


def test_charts_are_saved_as_a_page(runs: list[Run], tmp_path: Path) -> None:
    plot = runs[0].plot()
    path = plot.save(tmp_path / "charts.html")
    assert path.read_text().startswith("<!doctype html>")
    assert repr(plot) == f'<charts of {runs[0].label}; .save("charts.html") writes them>'


def test_columns_without_a_figure_are_left_out() -> None:
    assert "efficiency" not in re.sub(r"<iframe.*", "", make_run("single", 1000.0)._repr_html_(), flags=re.DOTALL)
    assert notebook([]) == "<p>no runs</p>"
