"""Fits logged with the real libraries, in their offline modes, and read back with them."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.record.trackers.to_mlflow import FILES_ALLOWED, _files_allowed
from tests.conftest import make_task

from .conftest import OfflineRun, go_offline

pytest.importorskip("wandb")
pytest.importorskip("mlflow")
pytest.importorskip("tensorboard")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def in_mlflow(folder: Path, experiment: str) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    with _files_allowed():
        client = MlflowClient((folder / "mlruns").as_uri())
    found = client.get_experiment_by_name(experiment)
    return client, client.search_runs([found.experiment_id])


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mh.Runs]:
    """A comparison that is logged with all of them: one for all tests, because their packages take seconds to start."""
    folder = tmp_path_factory.mktemp("logged")
    with pytest.MonkeyPatch.context() as patch:
        go_offline(patch, folder)
        patch.chdir(folder)
        yield mh.compare(
            make_task(epochs=2),
            ["single", "ddp"],
            ranks=2,
            threads=1,
            rounds=1,
            round_seconds=0.05,
            device="cpu",
            run_dir=folder / "runs",
            progress=False,
            log=["wandb, tensorboard,csv", mh.trackers.Mlflow(experiment="strategies")],
        )


def figures_of(run: mh.Run) -> dict[str, float]:
    """Some that every tracker has at the end."""
    assert run.phases_ms is not None
    assert run.test is not None
    classes = {f"test/per_class/{name}": value for name, value in run.test["per_class"].items()}
    phases = {f"phases_ms/{name}": value for name, value in run.phases_ms.items() if value is not None}
    return {**phases, **classes, "samples_per_second": run.samples_per_second or 0.0}


def losses_of(run: mh.Run) -> list[tuple[int, float | None]]:
    """The loss of each step over all ranks, as the record has it."""
    assert run.steps == len(run.losses) == 68
    return list(enumerate(run.losses, start=1))


def test_nothing_was_in_the_way(runs: mh.Runs) -> None:
    import wandb

    assert [run.status for run in runs] == ["done", "done"]
    assert not [note for run in runs for note in run.notes if "switched off" in note]
    assert wandb.run is None, "the caller's own place for a run stays free"
    assert FILES_ALLOWED not in os.environ


def test_wandb(runs: mh.Runs) -> None:
    for run in runs:
        assert run.folder is not None
        logged = OfflineRun(run.folder)
        assert [(row["step"], row["loss"]) for row in logged.history if "loss" in row] == losses_of(run)
        tested = [(row["step"], row["epoch/test_accuracy"]) for row in logged.history if "epoch/test_accuracy" in row]
        assert tested == [(34, run.epochs[0]["test_accuracy"]), (68, run.epochs[1]["test_accuracy"])]
        assert logged.group == run.comparison
        assert logged.config["strategy"] == run.strategy
        assert logged.config["batch_size"] == run.batch_size
        assert logged.config["environment/torch"] == run.environment["torch"]
        assert logged.summary["weights_sha256"] == run.weights_sha256
        assert {name: logged.summary[name] for name in figures_of(run)} == figures_of(run)
        assert logged.artifacts == ["report.html"]
        assert logged.exit_code == 0


def test_mlflow(runs: mh.Runs) -> None:
    assert runs[0].folder is not None
    client, kept = in_mlflow(runs[0].folder.parents[1], "strategies")
    assert {row.data.tags["manyhands.comparison"] for row in kept} == {runs[0].comparison}
    for run in runs:
        [row] = [row for row in kept if row.data.params["strategy"] == run.strategy]
        history = client.get_metric_history(row.info.run_id, "loss")
        assert [(point.step, point.value) for point in history] == losses_of(run)
        assert row.data.params["environment/torch"] == run.environment["torch"]
        assert {name: row.data.metrics[name] for name in figures_of(run)} == figures_of(run)
        assert row.data.tags["weights_sha256"] == run.weights_sha256
        assert [file.path for file in client.list_artifacts(row.info.run_id)] == ["report.html"]
        assert row.info.status == "FINISHED"


def test_tensorboard(runs: mh.Runs) -> None:
    for run in runs:
        assert run.folder is not None
        curves = scalars(run.folder / "tensorboard")
        assert curves["loss"] == [(step, pytest.approx(loss)) for step, loss in losses_of(run)]
        for name, value in figures_of(run).items():
            assert curves[name] == [(run.steps, pytest.approx(value))]


def test_csv(runs: mh.Runs) -> None:
    for run in runs:
        assert run.folder is not None
        steps = [(int(row["step"]), float(row["loss"])) for row in rows_of(run.folder / "steps.csv")]
        assert steps == losses_of(run)
        assert [int(row["epoch"]) for row in rows_of(run.folder / "epochs.csv")] == [1, 2]
        figures = {row["name"]: row["value"] for row in rows_of(run.folder / "figures.csv")}
        assert figures["weights_sha256"] == run.weights_sha256
        assert {name: float(figures[name]) for name in figures_of(run)} == figures_of(run)
