"""What `train` prints at its end, from records made by hand."""

from __future__ import annotations

import pytest

from manyhands.cli.terminal import show_run
from tests.record.test_hints import record


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_hints_come_after_the_figures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show_run(record(phases={"load": 73.0}))
    assert "hint: Loading the data takes 85 % of the step (73.0 of 85.5 ms): try --loader-workers 4." in printed(capsys)
    show_run(record())
    assert "hint:" not in printed(capsys)


def test_a_slow_rank_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    show_run(record(slow_rank={"rank": 1, "phase": "load", "behind_ms": 8.0}))
    assert printed(capsys).count("slow in load") == 1
