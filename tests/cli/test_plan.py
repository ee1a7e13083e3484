"""`manyhands plan`: a small plan from end to end, what it keeps, and what it refuses before torch is busy."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest
import torch

from manyhands.cli.plan import _too_short
from manyhands.record.ledger import read
from tests.conftest import Command

SMALL = "glyphs:train=600,test=100"


def test_a_plan_and_the_runs_that_score_it(command: Command, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = ("plan", SMALL, "ddp", "hogwild", "--ranks", "2,16", "--budget", "5", "--max-steps", "20")
    code, out, _ = command(*words, "--runs", str(runs), "--price", "3", "--json")
    assert code == 0
    document = json.loads(out)
    rows = {(one["strategy"], one["ranks"]): one for one in document["forecasts"]}
    assert {("ddp", 2), ("ddp", 16), ("hogwild", 2), ("hogwild", 16), ("single", 1)} <= set(rows)
    for one in rows.values():
        assert one["feasible"], one["reason"]
        low, high = one["interval"]
        assert 0 < low < one["samples_per_second"] < high
        assert one["step_ms"] == pytest.approx(1000 * 600 / 19 / one["samples_per_second"])  # the last step is short
        assert sum(one["phases_ms"].values()) == pytest.approx(one["step_ms"], rel=0.01)
        assert one["memory_bytes"] > 1e7
        assert one["cost"] == pytest.approx(3 * one["seconds"] / 3600)
        for figure in ("step_ms", "memory_bytes", "seconds", "cost"):
            low, high = one[f"{figure.removesuffix('_bytes')}_interval"]
            assert 0 < low < one[figure] < high, figure
    assert rows["ddp", 16]["basis"] == "simulated"
    fastest = max(rows.values(), key=lambda one: one["samples_per_second"])
    assert document["best"]["strategy"] == fastest["strategy"]
    assert document["best"]["why"].startswith("It is forecast ")
    assert len(read(runs)) == len(document["forecasts"])

    words = ("train", SMALL, "ddp", "--ranks", "2", "--max-steps", "20", "--run-dir", str(runs / "one"), "--json")
    code, out, _ = command(*words)
    assert code == 0
    assert json.loads(out)["forecast"]["samples_per_second"] == rows["ddp", 2]["samples_per_second"]
    code, out, _ = command("plan", "--score", "--runs", str(runs), "--json")
    assert code == 0
    [scored] = json.loads(out)["scores"]
    assert scored["error"] == pytest.approx(scored["forecast"] / scored["measured"] - 1)
    code, out, _ = command("plan", "--score", "--runs", str(runs))
    assert code == 0
    assert "ddp" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--measure-link", "link.json"), "--measure-link measures and plans nothing; leave out STRATEGY"),
        (("--link", "nosuch.json"), "the link nosuch.json cannot be read (No such file or directory)"),
        (("--on", "slurm"), "(--on goes with --measure-link)"),
    ],
)
def test_links_that_cannot_be_measured_or_read_are_bad_input(
    command: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    code, out, err = command("plan", SMALL, "ddp", "--runs", str(tmp_path), *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_link_between_one_host_and_itself_is_not_measured(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "link.json"
    code, out, err = command("plan", "--measure-link", str(file))
    assert (code, out) == (2, "")
    assert "one process on each of two hosts (hosts: 1); use --on slurm:nodes=2" in err
    assert not file.exists()
    code, _, err = command("plan", "--measure-link", str(file.with_suffix(".txt")))
    assert code == 2
    assert "its name ending with .json" in err


def test_a_table_for_people_and_many_hosts(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = (
        "plan",
        SMALL,
        "ddp",
        "hogwild",
        "--no-trials",
        "--budget",
        "5",
        "--hosts",
        "1000",
        "--ranks-per-host",
        "2",
    )
    fleet = ("--link", "100gbit,10us", "--mtbf", "30d", "--stragglers", "0.05", "--runs", str(tmp_path))
    code, out, _ = command(*words, *fleet, "--price", "3.6")
    assert code == 0
    assert re.search(r"On 1,000 hosts, the batch of one on each:.*\n\s*strategy .* cost\n", out)
    tables = [line for line in out.splitlines() if line.startswith(("strategy", "single", "ddp"))]
    assert len(tables) == 6
    assert all(len(line) <= 80 and "…" not in line for line in tables)
    assert "~ simulated" in out
    assert "2,000" in out  # ranks
    assert "goodput" in out
    assert "Best on 1,000 hosts: ddp, the first to finish." in out
    assert "not feasible: hogwild: it shares memory and cannot run over several hosts" in out


def test_many_hosts_cost_what_all_of_them_cost(command: Command, tmp_path: Path) -> None:
    """`--price` was forgotten for many hosts: the cost shown was that of one. The table: above."""
    words = ("plan", SMALL, "ddp", "fsdp", "--no-trials", "--budget", "5", "--hosts", "100", "--ranks-per-host", "2")
    code, out, _ = command(*words, "--price", "3.6", "--json", "--runs", str(tmp_path))
    assert code == 0
    found = json.loads(out)
    finished = {one["strategy"]: one for one in found["at_scale"] if one["feasible"]}
    assert found["best_at_scale"] == min(finished, key=lambda name: finished[name]["seconds"])
    for one in finished.values():
        assert one["cost"] == pytest.approx(100 * 3.6 / 3600 * one["seconds"])
        assert one["cost_interval"] == pytest.approx([100 * 3.6 / 3600 * bound for bound in one["seconds_interval"]])


def test_a_budget_that_was_too_short_is_told_beside_the_table() -> None:
    skipped = ["8 ranks apart", "trial of ddp on 4 ranks", "trial of fsdp on 4 ranks"]
    assert _too_short(skipped, 83.0) == (
        "the budget was too short for 3 measurements (8 ranks apart, trial of ddp on 4 ranks, ...): forecasts that follow "
        "from them are guesses; use --budget 90"
    )
    assert "1 measurement (8 ranks apart): " in _too_short(skipped[:1], 60.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nosuch",), 'no task named "nosuch"'),
        (("glyphs", "dpp"), 'no strategy named "dpp"; did you mean "ddp"?'),
        (("glyphs", "--budget", "1"), "budget must be at least 5 seconds (found 1)"),
        (("glyphs", "--hosts", "0"), "hosts must be a whole number of at least 1 (found 0)"),
        (("glyphs", "--link", "fast"), '"fast" is not a link'),
        (("glyphs", "--memory", "80"), "80"),
        pytest.param(
            ("glyphs", "--device", "cuda"),
            "device=cuda but no GPU is available",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (("glyphs", "--price", "-1"), "price must be 0 or more (found -1.0)"),
        (("glyphs", "--mtbf", "30d"), "--mtbf and --stragglers are for many hosts; give --hosts and --ranks-per-host"),
        (
            ("glyphs", "--ranks-per-host", "2", "--ranks", "4"),
            "--ranks-per-host says how many ranks each host has; leave out --ranks",
        ),
        (("glyphs", "--price", "inf"), "price must be 0 or more (found inf)"),
        (
            ("glyphs", "--ranks-per-host", "2", "--checkpoint-seconds", "-3"),
            "a checkpoint must take 0 seconds or more (found: -3 s)",
        ),
        (("glyphs", "--on", "slurm"), "plan measures on this machine; leave out --on"),
    ],
)
def test_what_it_refuses(command: Command, words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    code, out, err = command("plan", *words, "--quiet", "--runs", str(tmp_path / "runs"))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    command: Command, tmp_path: Path
) -> None:
    """A minute of measuring ended in a traceback, because `--runs` was a file."""
    (tmp_path / "file").write_text("")
    code, out, err = command("plan", "glyphs", "--quiet", "--runs", str(tmp_path / "file" / "runs"))
    assert (code, out) == (2, "")
    assert "cannot be written (Not a directory); use another --runs" in err
    assert len(err.splitlines()) == 1


def test_forecasts_that_cannot_be_kept_are_shown(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("manyhands.studies.plan.plan.kept", full)
    code, out, err = command("plan", SMALL, "ddp", "--no-trials", "--budget", "5", "--runs", str(tmp_path), "--json")
    assert code == 0
    assert "could not be kept" in err
    assert json.loads(out)["ledger"] is None
