"""A diagnosis from end to end, with slices too short to mean anything: what is said, not what is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import manyhands as mh
from manyhands.cli.tables import show_diagnosis
from manyhands.studies.diagnose import measured
from tests.conftest import Command, make_task

WORDS = (
    "loading", "augmentation", "transfer", "forward", "backward", "communication", "lock", "straggler", "threads",
    "cores", "launch", "update", "evaluation", "checkpoint", "start", "none",
)  # fmt: skip


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SLICE_SECONDS", 0.02), ("ROUNDS", 1), ("LOOKS", 1), ("HARDLY", 0.0)):
        monkeypatch.setattr(measured, name, value)


def test_the_document_and_what_applying_gained(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text("from tests.conftest import make_task\ntask = make_task(epochs=2, batch_size=100)\n")
    words = ("--even-if-busy", "--apply", "--json", "--threads", "1", "--checkpoint-every", "20")
    code, out, err = command("diagnose", str(file), "single", *words)
    assert code == 0
    found = json.loads(out)
    assert found["bottleneck"] in WORDS
    assert found["step_ms"] > 0
    assert {"batches of 400", "no evaluation"} <= {one["change"] for one in found["experiments"]}
    for one in found["experiments"]:
        assert one["interval"][0] <= one["speedup"] <= one["interval"][1]
    assert {"change": "loader workers", "reason": "the data is in memory"} in found["not_tried"]
    assert found["verdict"]
    assert bool(found["applied"]) == bool(found["advice"])
    assert "round 1: bf16" in err
    if found["applied"]:
        assert found["applied"]["change"] == found["advice"][0]["change"]
        assert list(Path("runs").glob("*/run.json"))


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    one = {"change": "4 loader workers", "step_ms": 12.345, "speedup": 2.5, "interval": [2.25, 2.75]}
    said = "Reading the data holds this job back: it costs 9.0 ms per step (a step takes 12.3 ms). " * 2
    show_diagnosis(
        {
            "experiments": [one, {**one, "change": "one rank with all threads"}],
            "not_tried": [
                {"change": "a compiled model", "reason": "compiling takes minutes; use --budget 240 or more"}
            ],
            "verdict": said,
            "advice": [{"change": "x", "speedup": 2.5, "command": "manyhands train mnist:slow --loader-workers 4"}],
            "applied": {"change": "4 loader workers", "promised": 2.5, "speedup": 2.4},
        }
    )
    out = capsys.readouterr().out
    assert "4 loader workers             12.35     2.50x  2.25 to 2.75" in out
    assert " 2.5x  manyhands train mnist:slow --loader-workers 4" in out
    assert "made the job 2.4x faster (promised: 2.5x)" in " ".join(out.split())
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())


def test_bad_input(command: Command, tmp_path: Path) -> None:
    with pytest.raises(mh.BadInput, match=r"budget must be at least 10 seconds \(found 3\)"):
        mh.diagnose(make_task(), budget=3)
    mh.fit(make_task(), run_dir=tmp_path / "run", progress=False, max_steps=3)
    code, _, err = command("diagnose", str(tmp_path / "run"), "--apply")
    assert code == 2
    assert "--apply needs a task to run" in err
    code, _, err = command("diagnose", "glyphs", "--resume", "--run-dir", "r")
    assert code == 2
    assert "--resume: experiments start from scratch" in err


def test_a_job_that_fails_is_a_failure() -> None:
    with pytest.raises(mh.Refused, match="pipeline"):
        mh.diagnose(make_task(), "pipeline", ranks=40)


def test_beside_others_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured.Neighbours, "cores_of_others", lambda self: 1.5)
    found = mh.diagnose(make_task(), threads=1)
    assert (found["bottleneck"], found["others_cores"], found["advice"]) == ("none", 1.5, [])
    assert found["verdict"].startswith("No verdict: other processes use 1.5 of the")
    assert all(one["change"].startswith("no ") for one in found["experiments"])  # what a stretch of the job shows
