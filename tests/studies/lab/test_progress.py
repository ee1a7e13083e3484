"""What is said while an experiment runs: the part, what it took, about how long the rest takes."""

from __future__ import annotations

import sys

import pytest

from manyhands.studies.lab import progress
from manyhands.studies.lab.progress import LabProgress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_than_in_a_terminal_there_are_two_lines_per_part(clock: list[float], capsys):
    shown = LabProgress(True)
    shown.begin([1.0, 3.0, 1.0, 1.0], total=5)
    for label, cost, seconds, problem in (("a", 1.0, 10, None), ("b", 3.0, 0, "refused"), ("c", 1.0, 20, None)):
        shown.part(label)
        shown.epoch(1, 2)
        clock[0] += seconds
        shown.part_ended(cost, problem)
    shown.part("d")
    shown.end()
    assert capsys.readouterr().err.splitlines() == [
        "1 of 5 fits are already there and are not run again",
        "[2/5] a",
        "  10.0 s",
        "[3/5] b (about 50 s left)",
        "  refused",
        "[4/5] c (about 20 s left)",  # a refusal took no time, and the others are no shorter for it
        "  20.0 s",
        "[5/5] d (about 15 s left)",
    ]


def test_fits_that_are_left_out_count_as_done(clock: list[float], capsys):
    shown = LabProgress(True)
    shown.begin([1.0, 1.0, 1.0], total=3)
    shown.part("a")
    clock[0] += 200
    shown.part_ended(1.0, None)
    shown.skipped()
    shown.part("c")
    assert capsys.readouterr().err.splitlines()[-1] == "[3/3] c (about 3 min left)"


def test_a_terminal_has_one_line_that_is_taken_back_and_never_wraps(clock: list[float], capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    shown = LabProgress(True)
    shown.begin([1.0], total=1)
    shown.part("a label that is far longer than the terminal is wide")
    clock[0] += 5
    shown.epoch(1, 2)
    shown.part_ended(1.0, None)
    lines = capsys.readouterr().err.split("\r\x1b[K")
    assert [len(line) for line in lines[1:3]] == [39, 39]
    assert lines[-1] == "[1/1] a label that is far longer than the terminal is wide: 5.0 s\n"


def test_time_left_follows_the_epochs_of_the_first_part(clock: list[float], capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    shown = LabProgress(True)
    shown.begin([1.0, 1.0], total=2)
    shown.part("a")
    clock[0] += 5
    shown.epoch(1, 2)
    assert capsys.readouterr().err.endswith("[1/2] a: epoch 1 of 2 (about 15 s left)")


def test_silence_is_kept(capsys):
    shown = LabProgress(False)
    shown.begin([1.0], total=2)
    shown.part("a")
    shown.epoch(1, 1)
    shown.part_ended(1.0, "why")
    shown.end()
    assert capsys.readouterr() == ("", "")
