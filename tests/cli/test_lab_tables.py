"""What `manyhands lab` prints fits 80 columns, cuts nothing off and leaves no spaces at the end of lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from manyhands.cli import lab_tables
from manyhands.studies.lab import Experiment, Verdict
from tests.lab_result import figure, made_up


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []
    assert "…" not in "".join(lines)
    return lines


def test_published_figures_stand_under_measured_ones(capsys: pytest.CaptureFixture[str]) -> None:
    lab_tables.show_experiment(made_up(), Path("report.html"))
    lines = [re.sub(r"\s{2,}", "  ", line) for line in printed(capsys)]
    assert lines[:3] == [
        "  load ms  total s  accuracy",
        "0 workers  6.30  71.30  99.08 %",
        "  published  6.40  72.80  99.08 %",
    ]
    assert "8 workers: loader_workers: 8 processes need 8 cores (found 2)" in lines
    text = " ".join(lines)
    assert "Measured: the median of 3 seeds. Published with: MNIST, LeNet, batch 32" in text
    assert text.endswith("loading takes most of a step without workers. report: report.html")
    assert "Quick run" not in text


def test_six_columns_and_long_labels_fit(capsys: pytest.CaptureFixture[str]) -> None:
    headings = ["samples per s", "step ms", "first device %", "accuracy", "peak memory MiB", "use of cores"]
    columns = [{"key": str(n), "heading": heading, "form": ",.2f"} for n, heading in enumerate(headings)]
    label = "parameter_server:servers=2,mode=bounded,staleness=4 with one slow worker"
    row = {str(n): figure(1234.567 * (n + 1)) for n in range(6)}
    result = made_up(
        columns=columns,
        measured=[{"row": label, **row, "problem": None}],
        published=[{"row": label, "0": 1111.0, "5": 22222.0}],
        quick=True,
        note="2 epochs instead of 10",
    )
    lab_tables.show_experiment(result, Path("report.html"))
    text = "\n".join(printed(capsys))
    for figure_of_it in ("1,234.57", "7,407.40", "1,111.00", "22,222.00"):
        assert figure_of_it in text
    assert "Quick run, reduced: 2 epochs instead of 10." in text
    labels = [re.split(r"\s{2,}|\s(?=[\d,.]+\s)", line)[0] for line in text.split("\n\n")[0].splitlines()]
    assert label.replace(" ", "") in "".join(labels).replace(" ", "")


def test_a_list_of_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    one = Experiment(
        name="any", title="Anything", claim="It is 3.9x faster " + "and faster " * 12 + "still.", source="",
        parts=lambda scale: [], columns=(), judge=lambda table: Verdict(None, "", ""), takes=("1 min", "9 min on one GPU"),
    )  # fmt: skip
    lab_tables.show_experiments([one])
    lines = printed(capsys)
    assert lines[0] == "any: Anything"
    assert "  Takes about 1 min with --quick; in full: 9 min on one GPU." in lines
    assert lines[-1].startswith("manyhands lab FILE.py")
