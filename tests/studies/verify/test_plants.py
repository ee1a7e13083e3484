"""The planted faults of tasks: each is named, and nothing is named in its healthy twin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT, Command

PLANTS = sorted((ROOT / "benchmarks" / "zoo" / "correctness").glob("[a-z]*.py"))


def said(path: Path, healthy: bool, command: Command) -> tuple[str, object]:
    """The cause that is planted, and the one that is named."""
    from benchmarks.zoo.plants import read

    plant = read(path, "correctness")
    _, out, err = command("verify", *plant.words(healthy), "--json")
    assert out, err
    [result] = json.loads(out)["results"]
    return plant.cause, result["cause"]


@pytest.mark.soak
@pytest.mark.parametrize("path", PLANTS, ids=lambda path: path.stem)
def test_a_planted_fault_is_named(path: Path, command: Command) -> None:
    planted, named = said(path, False, command)
    assert named == planted


@pytest.mark.soak
@pytest.mark.parametrize("path", PLANTS, ids=lambda path: path.stem)
def test_a_healthy_twin_is_equal(path: Path, command: Command) -> None:
    assert said(path, True, command)[1] is None


def test_there_are_plants() -> None:
    assert len(PLANTS) >= 10
