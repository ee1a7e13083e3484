"""What holds for every tracker: what is refused before a start, and that none of them can harm a fit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.errors import BadInput
from manyhands.record.run import Run
from manyhands.record.trackers import trackers_of, writer
from manyhands.record.trackers.contract import About, Row, Session, Tracker, installed
from manyhands.record.trackers.log import Log
from manyhands.record.trackers.to_mlflow import _name
from tests.conftest import Command, make_task, quick_fit


class Kept(Tracker):
    """Remembers what it is told, and breaks where it is asked to."""

    name = "kept"

    def __init__(self, breaks: str = ""):
        self.breaks = breaks
        self.told: list[tuple[str, Any]] = []

    def open(self, about: About) -> Session:
        self.note("open", about)
        return _KeptSession(self)

    def note(self, verb: str, content: Any) -> None:
        if verb == self.breaks:
            raise OSError(f"no room for {verb}\nand a second line")
        self.told.append((verb, content))

    def rows(self, kind: str) -> list[Row]:
        return [row for verb, content in self.told if verb == kind for row in content]


class _KeptSession(Session):
    def __init__(self, tracker: Kept):
        self.tracker = tracker

    def log(self, kind: str, rows: Sequence[Row]) -> None:
        self.tracker.note("log", kind)
        self.tracker.note(kind, list(rows))

    def end(self, run: Run, page: str | None) -> None:
        self.tracker.note("end", run)

    def close(self, status: str) -> None:
        self.tracker.note("close", status)


def logged(*trackers: Tracker) -> Run:
    """A fit of three steps, as its log hears of it."""
    run = Run("task", "ddp", ranks=2)
    log = Log(trackers, run)
    log.hear("starting", None)
    log.hear("progress", {"step": 1, "loss": 2.5, "samples_per_second": 10.0})
    log.hear("losses", (0, 1, [3.0, None, 1.0]))
    log.hear("epoch", {"epoch": 1, "loss": 2.0, "test_accuracy": 0.5})
    log.finish()
    return run


def test_names_are_answered_before_anything_starts(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = command("train", "glyphs", "--log", "csv,wandbb")
    assert (code, out) == (2, "")
    assert err == 'manyhands: no log named "wandbb"; did you mean "wandb"?\n'
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, out, err = command("compare", "glyphs", "--log", "wandb")
    assert (code, out) == (2, "")
    assert err == "manyhands: --log wandb needs the package wandb; pip install 'manyhands[wandb]'\n"
    assert list(Path.cwd().iterdir()) == []


def test_what_log_does_not_take() -> None:
    with pytest.raises(BadInput, match=r'log takes names such as "wandb,csv" or objects of mh.trackers \(found 3\)'):
        trackers_of([3], None)  # type: ignore[list-item]
    with pytest.raises(BadInput, match="--log names csv twice"):
        trackers_of("csv,csv", "here")
    with pytest.raises(BadInput, match=r"--log csv needs a folder to write to; give run_dir \(--run-dir\)"):
        trackers_of("csv", None)
    assert trackers_of(None, None) == []
    assert trackers_of(mh.trackers.Csv("there"), None) == [mh.trackers.Csv("there")]


def test_a_folder_that_wandb_left_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wandb/` in the working folder once passed for the package that was not installed."""
    (tmp_path / "left_behind").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not installed("left_behind")
    assert not installed("nowhere.at.all")
    assert installed("json")


@pytest.mark.parametrize("verb", ["open", "log", "end", "close"])
def test_one_that_breaks_is_switched_off_with_one_note(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    broken, whole = Kept(breaks=verb), Kept()
    run = logged(broken, whole)
    text = f"--log kept was switched off, the run is not affected: OSError: no room for {verb}"
    assert run.notes == [text]
    assert capsys.readouterr().err == f"{text}\n"
    assert [kind for kind, _ in whole.told][-2:] == ["end", "close"]


def test_what_is_told() -> None:
    kept = Kept()
    logged(kept)
    assert kept.rows("steps") == [{"step": 1, "loss": 3.0}, {"step": 3, "loss": 1.0}]
    assert kept.rows("epochs") == [{"step": 3, "epoch/loss": 2.0, "epoch/test_accuracy": 0.5}]
    assert kept.rows("live") == [{"step": 1, "live/loss": 2.5, "live/samples_per_second": 10.0}]


def test_steps_that_come_again_after_a_restart_are_logged_once() -> None:
    kept = Kept()
    log = Log([kept], Run("task", "ddp"))
    log.hear("starting", None)
    log.hear("losses", (0, 1, [3.0, 2.0]))
    log.hear("starting", None)
    log.hear("losses", (1, 1, [2.0, 1.0]))
    log.finish()
    assert [row["step"] for row in kept.rows("steps")] == [1, 2, 3]
    assert [verb for verb, _ in kept.told].count("open") == 1


def test_one_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(writer, "FINISH_SECONDS", 0.1)
    monkeypatch.setattr("manyhands.record.trackers.log.FINISH_SECONDS", 0.1)
    release = threading.Event()

    class Hanging(Kept):
        def note(self, verb: str, content: Any) -> None:
            release.wait()

    run = logged(Hanging())
    release.set()
    assert run.notes == ["--log kept was switched off, the run is not affected: it was not done in 0.1 s"]
    assert capsys.readouterr().err == f"{run.notes[0]}\n"


def test_a_fit_ends_well_beside_a_broken_tracker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its complaint is in the stored record too, even where it comes after everything else."""
    run = quick_fit(make_task(epochs=1), log=[Kept(breaks="close"), "csv"], run_dir=tmp_path / "run")
    assert run.status == "done"
    assert (tmp_path / "run" / "steps.csv").exists()
    assert mh.Run.load(tmp_path / "run").notes == run.notes
    assert capsys.readouterr().err == f"{run.notes[-1]}\n"


def test_a_refused_fit_opens_none_and_a_failed_one_is_told_so(tmp_path: Path) -> None:
    kept = Kept()
    with pytest.raises(mh.Refused):
        quick_fit(make_task(), "pipeline", ranks=40, log=[kept])
    assert kept.told == []

    def fail(figures: Any) -> None:
        raise RuntimeError("on purpose")

    with pytest.raises((mh.RankFailed, RuntimeError)):
        quick_fit(make_task(epochs=1), log=[kept], on_epoch=fail)
    assert [verb for verb, _ in kept.told][-2:] == ["end", "close"]


def test_a_loss_of_several_steps_stands_at_the_last_of_them(tmp_path: Path) -> None:
    """Records of very many steps have means of several; numbered by their place, a curve of a million steps ended at 100,000."""
    run = Run("task", "ddp", steps=7, losses=[3.0, 2.0, None], steps_per_loss=3)
    session = mh.trackers.Csv(tmp_path).open(About("tiny", {}))
    session.end(run, None)
    assert (tmp_path / "steps.csv").read_text().split() == ["step,loss", "3,3.0", "6,2.0", "7,"]


def test_hooks(tmp_path: Path) -> None:
    """In calls of one's own, with the figures that callbacks see."""
    with mh.trackers.Csv(tmp_path / "mine") as tracker:
        run = quick_fit(make_task(epochs=2), on_epoch=tracker.on_epoch, on_step=tracker.on_step, max_steps=40)
    lines = (tmp_path / "mine" / "steps.csv").read_text().splitlines()
    assert lines[0] == "step,loss,learning_rate"
    assert len(lines) == 1 + run.steps
    assert len((tmp_path / "mine" / "epochs.csv").read_text().splitlines()) == 1 + 2


def test_a_hook_without_a_folder_is_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    with mh.trackers.Csv() as tracker:
        tracker.on_epoch({"epoch": 1, "loss": 1.0, "step": 3})
    assert "switched off, the run is not affected: BadInput: it has no folder to write to" in capsys.readouterr().err


def test_where_it_is_logged_is_told_once() -> None:
    class There(Kept):
        def open(self, about: About) -> Session:
            session = super().open(about)
            session.where = "http://there/7"
            return session

    said: list[str] = []
    log = Log([There()], Run("task", "ddp", ranks=2), say=said.append)
    log.hear("starting", None)
    log.finish()
    assert said == ["task ddp 2 ranks: logged to kept, http://there/7"]


def test_names_of_classes_that_mlflow_would_not_take() -> None:
    assert _name("test/per_class/a b?") == "test/per_class/a b_"
    assert _name("test/../x//y") == "test/_/x/_/y"
