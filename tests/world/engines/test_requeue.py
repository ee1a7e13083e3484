"""A job that Slurm starts again: its fits go on from their last checkpoint without being asked to."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from manyhands.cli.inputs import new_folder
from manyhands.training.checkpoints.checkpoint import published
from manyhands.world.engines.requeue import JOB_FILE, first_used, requeues
from tests.conftest import make_task, quick_fit


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "40")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)


def queued_again(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(times))


def test_outside_of_slurm_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert (first_used(tmp_path), requeues()) == (None, 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("job")
def test_a_job_knows_since_when_a_folder_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_used(tmp_path) is None
    began = (tmp_path / JOB_FILE).stat().st_mtime
    for times in (1, 2):
        queued_again(monkeypatch, times)
        assert first_used(tmp_path) == began
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    assert first_used(tmp_path) is None


@pytest.mark.usefixtures("job")
def test_a_fit_of_a_job_that_was_queued_again_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, kept = make_task(epochs=1), {"run_dir": tmp_path, "checkpoint_every": 5}
    whole = quick_fit(task)
    quick_fit(task, max_steps=12, **kept)
    queued_again(monkeypatch)
    run = quick_fit(task, **kept)
    assert run.resumed_from is not None
    assert run.resumed_from["step"] == 12
    assert run.restarts == 1
    assert run.weights_sha256 == whole.weights_sha256


@pytest.mark.usefixtures("job")
def test_checkpoints_of_another_run_are_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job was ended before its first checkpoint, in a folder with those of an earlier run."""
    task, kept = make_task(epochs=1), {"run_dir": tmp_path, "checkpoint_every": 5}
    with monkeypatch.context() as other:
        other.delenv("SLURM_JOB_ID")
        quick_fit(task, max_steps=12, **kept)
    for path in published(tmp_path / "checkpoints"):
        os.utime(path, times=(time.time() - 60,) * 2)
    first_used(tmp_path)
    queued_again(monkeypatch)
    run = quick_fit(task, **kept)
    assert (run.resumed_from, run.restarts) == (None, 0)


@pytest.mark.usefixtures("job")
def test_a_command_finds_its_folder_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["manyhands", "train", "glyphs", "ddp", "--seed", "1"])
    folder = new_folder("glyphs", "ddp")
    assert folder.name.startswith("slurm-40-glyphs-ddp-")
    folder.mkdir(parents=True)
    assert new_folder("glyphs", "ddp").name == f"{folder.name}-2"
    queued_again(monkeypatch)
    assert new_folder("glyphs", "ddp") == folder
    monkeypatch.setattr("sys.argv", ["manyhands", "train", "glyphs", "ddp", "--seed", "2"])
    assert new_folder("glyphs", "ddp") != folder
