"""`manyhands run`: scripts left as they are, started by the command, with their records."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.pages.words import conclusion, verdict
from manyhands.record.run import Run
from tests.conftest import Command

SCRIPTS = Path(__file__).parent / "scripts"
MEASURED = ("forward", "backward", "update", "other")


def run(command: Command, *words: str, ranks: int | None = None, code: int = 0) -> tuple[dict[str, Any], str]:
    """The record, and what was said on standard error."""
    start = ["run", "--json", "--quiet", "--run-dir", "r", *(["--ranks", str(ranks)] if ranks else [])]
    found, out, err = command(*start, *words)
    assert found == code, err
    record = json.loads(out)
    assert Run.load("r").record() == record
    return record, err


def told(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["status"], record["ranks"], record["steps"], record["updates"], record["samples"]


@pytest.mark.soak
def test_a_plain_loop_on_one_rank_trains_the_same_weights(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(SCRIPTS / "mnist_loop.py")
    words = ["--epochs", "2", "--samples", "320", "--save"]
    monkeypatch.setattr(sys, "argv", [script, *words, "plain.pt"])
    with torch.random.fork_rng(), redirect_stdout(StringIO()):
        runpy.run_path(script, run_name="__main__")
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    record, _ = run(command, script, *words, "measured.pt")
    assert told(record) == ("done", 1, 10, 10, 640)
    assert (record["task"], record["strategy"], record["batch_size"], record["accumulate"]) == (
        "mnist_loop.py",
        "script",
        64,
        1,
    )
    assert record["seconds"] == pytest.approx(sum(v or 0 for v in record["phases_ms"].values()) * 10 / 1000)
    assert all(record["phases_ms"][name] > 0 for name in (*MEASURED, "load"))
    assert record["phases_ms"]["augment"] is record["phases_ms"]["wait"] is record["seed"] is None
    assert record["startup_seconds"] > 0 < record["evaluation_seconds"]
    assert len(record["losses"]) == 10
    plain, measured = torch.load("plain.pt"), torch.load("measured.pt")
    assert all(torch.equal(plain[name], measured[name]) for name in plain)


def test_two_ranks_are_one_record_and_the_words_say_why_they_are_slower(command: Command) -> None:
    record, _ = run(command, str(SCRIPTS / "mnist_loop.py"), "--samples", "640", "--epochs", "1", ranks=2)
    assert told(record) == ("done", 2, 5, 5, 640)
    assert record["batch_size"] == 128  # 64 on each rank
    assert [row["rank"] for row in record["per_rank"]] == [0, 1]
    assert record["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
    assert record["phases_ms"]["communication"] > 0
    assert record["communication_bytes"] > 0
    assert {mark["rank"] for mark in json.loads(Path("r/timeline.json").read_text())} == {0, 1}
    two = Run.load("r")
    assert "mnist_loop.py trains" in conclusion([two])
    two.phases_ms = {"forward": 8.0, "backward": 20.0, "communication": 30.0, "update": 1.0, "other": 1.0}
    two.samples_per_second, two.threads = 800.0, 1
    one = Run.load("r")
    one.ranks, one.batch_size, one.samples_per_second, one.threads = 1, 64, 1600.0, 2
    one.phases_ms = {"forward": 8.0, "backward": 10.0, "communication": 0.0, "update": 1.0, "other": 1.0}
    assert verdict([one, two]) == (
        "mnist_loop.py on 2 ranks trains only 0.50x the samples/s of one rank (800 against 1,600): a step takes 60.0 ms, "
        "where one rank would take 20.0 ms for the samples of each rank, with 30.0 ms more in communication "
        "(exchanging data and waiting for other ranks) and 10.0 ms more in backward; each rank has one thread instead of 2."
    )


LIBRARIES = {  # steps, updates and samples over all ranks
    "transformers": ("hf_trainer.py", {1: (10, 10, 80), 2: (10, 10, 160)}),
    "accelerate": ("accelerate_loop.py", {1: (20, 20, 320), 2: (10, 10, 320)}),
    "lightning": ("lightning_fit.py", {1: (20, 20, 320), 2: (10, 10, 320)}),
}


@pytest.mark.soak  # these libraries take seconds to import; test_scripts_steps.py runs the same loops in one process
@pytest.mark.parametrize(
    ("library", "ranks"),
    [(library, ranks) for library in LIBRARIES for ranks in (1, 2)],
)
def test_loops_that_libraries_write(command: Command, library: str, ranks: int) -> None:
    if find_spec(library) is None or (library == "transformers" and find_spec("accelerate") is None):
        pytest.skip(f"{library} is not installed")
    script, expected = LIBRARIES[library]
    record, _ = run(command, str(SCRIPTS / script), "out", ranks=ranks)
    assert told(record) == ("done", ranks, *expected[ranks])
    assert all(record["phases_ms"][name] > 0 for name in (*MEASURED, "load"))
    assert record["phases_ms"]["communication"] > 0 or ranks == 1
    assert record["evaluation_seconds"] > 0
    assert record["accumulate"] == (2 if library == "transformers" else 1)


# ------------------------------------------------------------ how a script ends


def test_a_failure_names_rank_step_and_phase_and_ends_the_others(command: Command, nothing_left: None) -> None:
    began = time.monotonic()
    record, err = run(command, str(SCRIPTS / "ends.py"), "raise", ranks=2, code=1)
    assert record["status"] == "failed"
    assert record["reason"] == "rank 1 of 2 failed in step 7, other: ValueError: seven is enough"
    assert record["steps"] >= 5
    assert err.count("Traceback") == 1
    assert "manyhands/bridges" not in err
    assert 'ends.py", line' in err
    assert time.monotonic() - began < 60


@pytest.mark.soak
def test_a_killed_rank_is_named_with_what_it_had_measured(command: Command, nothing_left: None) -> None:
    record, _ = run(command, str(SCRIPTS / "ends.py"), "kill", ranks=2, code=1)
    assert record["reason"].startswith("rank 1 of 2 failed in step 7, other: killed by signal 9 (SIGKILL)")
    assert record["steps"] >= 5


@pytest.mark.soak
def test_exit_codes(command: Command) -> None:
    """A script's own code is in the reason; the command ends with 1, or with the script's own where nothing was trained.

    The script that trains has gone to another directory: the record is in the folder that was named all the same.
    """
    script = str(SCRIPTS / "ends.py")
    record, err = run(command, script, "exit", "3", code=1)
    assert record["reason"] == "the script failed: it ended with exit code 3"
    assert "Traceback" not in err
    assert told(record) == ("failed", 1, 10, 10, None)  # it has no loader: samples cannot be seen
    assert record["phases_ms"]["load"] is None
    assert record["phases_ms"]["forward"] > 0
    record, _ = run(command, script, "never", "0")
    assert (record["status"], record["steps"]) == ("done", 0)
    assert record["reason"] == "the script never imported torch, so there is nothing to measure"
    assert run(command, script, "never", "3", code=3)[0]["status"] == "failed"


@pytest.mark.soak
def test_a_rank_that_aborts_after_its_script_has_ended_is_noted(command: Command) -> None:
    """Threads of torch ended a rank with SIGABRT while Python shut down, and a whole run was called failed."""
    record, _ = run(command, str(SCRIPTS / "ends.py"), "abort")
    assert record["status"] == "done"
    assert "rank 0 was killed by signal 6 (SIGABRT) while Python shut down" in record["notes"][0]


@pytest.mark.soak
def test_a_rank_that_hangs_after_another_gave_up_is_ended(command: Command, nothing_left: None) -> None:
    record, err = run(command, str(SCRIPTS / "ends.py"), "hang", ranks=2, code=1)
    assert record["reason"] == "rank 1 of 2 failed: it ended with exit code 1"
    assert "the last rank gives up" in err or record["steps"] >= 9


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_ctrl_c_keeps_what_was_measured(ranks: int, nothing_left: None) -> None:
    words = ["run", "--json", "--run-dir", "r", "--ranks", str(ranks), str(SCRIPTS / "ends.py"), "sleep"]
    with subprocess.Popen(
        [sys.executable, "-m", "manyhands", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "asleep" not in process.stderr.readline():
            assert process.poll() is None
        live = wait_for_step("r/live.json", 5)
        assert (live["task"], live["strategy"], live["ranks"], live["steps"]) == ("ends.py", "script", ranks, None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    record = json.loads(out)
    assert (record["status"], record["reason"]) == ("stopped", "interrupted (Ctrl-C)")
    assert record["steps"] >= 6
    assert record["phases_ms"]["backward"] > 0


def wait_for_step(file: str, step: int) -> dict[str, Any]:
    """The live figures once they have come this far: they are written now and then, on a slow machine after the fact."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        live = json.loads(Path(file).read_text()) if Path(file).exists() else {"step": -1}
        if (live["step"] or 0) >= step:
            return live
        time.sleep(0.05)
    raise AssertionError(f"{file} did not come to step {step}")


# ------------------------------------------------------------ as Python would start it


def test_modules_are_started_with_their_own_words(command: Command, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "near.py").write_text("WORD = 'near'")
    (tmp_path / "pack" / "train.py").write_text(
        "import sys, json\nfrom .near import WORD\nprint(json.dumps([WORD, sys.argv[1:], __name__]), file=sys.stderr)\n"
    )
    code, _, err = command("run", "--quiet", "-m", "pack.train", "--ranks", "5", "-m")
    assert code == 0, err
    assert json.loads(err.strip().splitlines()[-1]) == ["near", ["--ranks", "5", "-m"], "__main__"]


def test_refusals_are_one_line(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "fine.py").write_text("")
    for words, message in {
        ("gone.py",): "no script at gone.py; name a Python file",
        ("notes.txt",): "notes.txt is not a Python script (it does not end in .py)",
        ("folder",): "folder is a folder without a __main__.py",
        ("-m", "no.such.module"): "no module named no.such.module",
        ("--ranks", "0", "fine.py"): "--ranks must be 1 or more (found 0)",
    }.items():
        code, _, err = command("run", *words)
        assert (code, len(err.strip().splitlines())) == (2, 1), err
        assert message in err
    assert not (tmp_path / "runs").exists()
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = command("run", "fine.py")
    assert code == 2
    assert "instead of torchrun use: manyhands run --ranks 2 fine.py" in err
