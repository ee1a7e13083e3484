"""The zoo: its plants say what they are, and its runner tells right answers from wrong ones, whoever gives them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.zoo.plants import Plant, plants

import manyhands as mh
from manyhands.strategies import make_strategy
from tests.conftest import ROOT

SPEED = plants(["speed"])
CAUSES = {
    "loading", "augmentation", "transfer", "forward", "backward", "communication", "lock", "straggler", "threads",
    "cores", "launch", "update", "evaluation", "checkpoint", "start", "none",
}  # fmt: skip


def test_there_are_speed_plants_for_every_cause_a_cpu_can_have() -> None:
    assert {plant.cause for plant in SPEED} == CAUSES - {"transfer"}
    assert len(SPEED) >= 18


@pytest.mark.parametrize("plant", SPEED, ids=lambda plant: plant.name)
def test_a_plant_defines_its_job_and_its_twin(plant: Plant) -> None:
    assert plant.cure
    planted, healthy = mh.load_task(str(plant.path)), mh.load_task(f"{plant.path}:healthy")
    assert planted.name != healthy.name
    for strategy in (plant.strategy, plant.healthy_strategy):
        make_strategy(strategy, 2 if strategy != "single" else None)


ANSWERS = """
import json, sys
name = sys.argv[1].rsplit("/", 1)[-1]
answers = {
    "slow_rank.py": {"bottleneck": "straggler", "rank": 1, "applied": {"promised": 2.0, "speedup": 1.9}},
    "slow_rank.py:healthy": {"bottleneck": "none", "rank": None},
    "tiny_batch.py": {"bottleneck": "loading", "advice": [{"change": "x", "speedup": 3.0}]},
}
assert "--json" in sys.argv
if name not in answers:
    sys.exit("no idea")
print(json.dumps(answers[name]))
"""


def zoo(tmp_path: Path, *words: str, answers: str = ANSWERS) -> tuple[int, str, list[dict[str, Any]]]:
    """The exit code, what was printed and what was kept, with a tool that knows three answers."""
    tool, kept = tmp_path / "tool.py", tmp_path / "answers.json"
    tool.write_text(answers)
    command = [sys.executable, "-m", "benchmarks.zoo", *words, "--json", str(kept)]
    command += ["--tool", shlex.join([sys.executable, str(tool)])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout, json.loads(kept.read_text())


def test_a_tool_that_is_right_passes(tmp_path: Path) -> None:
    code, out, kept = zoo(tmp_path, "slow_rank", "--healthy", "--apply", "--beside-burner")
    assert code == 0, out
    assert "rank ok" in out
    assert "gains: 1 of 1 within 30 %" in out
    assert [answer["expected"] for answer in kept] == ["straggler", "none"]
    assert kept[0]["command"][-5:] == ["ddp", "--ranks", "2", "--json", "--apply"]


def test_wrong_and_missing_answers_are_named(tmp_path: Path) -> None:
    code, out, kept = zoo(tmp_path, "tiny_batch", "slow_reader")
    assert code == 1
    assert "no idea" in out  # what the tool said instead
    assert "launch          loading               1   <-" in out
    assert kept[0]["answer"] is None


def test_the_wrong_rank_is_a_wrong_answer(tmp_path: Path) -> None:
    code, out, _ = zoo(tmp_path, "slow_rank", answers=ANSWERS.replace('"rank": 1', '"rank": 0'))
    assert code == 1
    assert "expected straggler, rank 1" in out


def test_an_unknown_plant_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.zoo", "slow_raeder"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 2
    assert 'no plant named "slow_raeder"' in done.stderr
