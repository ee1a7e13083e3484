"""Forecast beside measured, in the table, on the page and in the terminal; nothing of it where there was no forecast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyhands.cli import tables
from manyhands.pages import forecast_sentence
from manyhands.pages.comparison_table import columns, comparison_rows, legend
from manyhands.pages.forecasts import forecast_fact, forecast_text
from manyhands.pages.page import page
from manyhands.record.run import Run
from tests.pages.conftest import make_run


def told(strategy: str, speed: float | None, expected: Any, interval: Any = None, **fields: Any) -> Run:
    forecast = {"samples_per_second": expected, "interval": interval, "made": "2026-03-02", "basis": "simulated"}
    return make_run(strategy, speed, forecast=forecast, **fields)


RUNS = [
    told("single", 4000.0, 4120.0, [3900.0, 4300.0]),
    told("ddp", 8000.0, 7200.0, [7000.0, 7400.0]),
    told("hogwild", 10000.0, 10000.4),
    told("locked", None, 5000.0, [4000.0, 6000.0], status="failed", reason="planted"),
    make_run("pipeline", 3000.0),
]


def test_the_table_has_a_column_where_a_row_has_a_forecast() -> None:
    rows = comparison_rows(RUNS)
    (column,) = [column for column in columns(rows) if column.heading == "forecast"]
    assert [column.text(row) for row in rows] == ["4,120 (+3 %)", "7,200 (-10 %)", "10,000 (0 %)", "5,000", "-"]
    assert "forecast: samples/s that `manyhands plan` expected, and how far off that was" in legend([column], rows)
    without = comparison_rows(RUNS[-1:])
    assert "forecast" not in [column.key for column in columns(without)]


@pytest.mark.parametrize(("error", "shown"), [(-0.004, "(0 %)"), (0.006, "(+1 %)"), (12.0, "(+1200 %)")])
def test_signs(error: float, shown: str) -> None:
    assert forecast_text(1234.0, error) == f"1,234 {shown}"


def test_how_the_forecasts_did_in_one_line() -> None:
    assert forecast_sentence(RUNS) == "Three forecasts: a median error of 3 %; 1 of 2 intervals held."
    assert forecast_sentence(RUNS[:1]) == "One forecast: off by 3 %; the interval held."
    assert forecast_sentence(RUNS[1:2]) == "One forecast: off by 10 %; the interval did not hold."
    assert forecast_sentence(RUNS[2:3]) == "One forecast: off by 0 %."
    assert forecast_sentence(RUNS[3:]) is None


def test_the_page_has_column_line_and_fact() -> None:
    text = page(RUNS)
    assert "Three forecasts: a median error of 3 %; 1 of 2 intervals held." in text
    assert ">4,120 (+3 %)</td>" in text
    assert "4,120 samples/s (3,900 to 4,300), simulated, made 2026-03-02" in text
    assert forecast_fact(RUNS[-1]) is None
    assert "forecast" not in page(RUNS[-1:])


def test_the_terminal_says_the_same_within_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width, shown in ((80, True), (50, False)):
        monkeypatch.setenv("COLUMNS", str(width))
        tables.show_comparison(RUNS, Path("report.html"), None)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        assert ("forecast" in lines[0].split()) == shown
        text = " ".join(" ".join(lines).split())
        assert ("forecast" in text.partition("(left out here, in the report: ")[2].partition(")")[0]) != shown
        assert "Three forecasts: a median error of 3 %; 1 of 2 intervals held." in text


@pytest.mark.parametrize("interval", [None, [], [1.0], [None, None], ["a", "b"], [1.0, 2.0, 3.0]])
def test_records_of_any_kind_are_shown(interval: Any) -> None:
    run = told("ddp", 8000.0, 7200.0, interval)
    assert forecast_sentence([run]) == "One forecast: off by 10 %."
    assert forecast_fact(run) == "7,200 samples/s, simulated, made 2026-03-02"
    for expected in (None, 0.0, -1.0, "fast", float("nan")):
        strange = told("ddp", 8000.0, expected, interval)
        assert forecast_sentence([strange]) is None
        assert comparison_rows([strange])[0]["forecast"] is None
    assert forecast_sentence([make_run("ddp", 8000.0, forecast={})]) is None
