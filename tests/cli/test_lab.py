"""`manyhands lab`: what it prints, where it keeps it, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.errors import RankFailed, Refused
from manyhands.studies.lab import catalogue
from tests.conftest import Command
from tests.studies.lab.tiny import Fits, tiny


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Fits:
    """`manyhands lab tiny`, without fits."""
    monkeypatch.setattr(catalogue, "experiment", lambda name: tiny())
    monkeypatch.setattr("manyhands.studies.lab.lab.find", lambda name: tiny())
    return Fits(monkeypatch)


def test_without_a_name_they_are_listed(command: Command):
    code, out, err = command("lab")
    assert (code, err) == (0, "")
    listed = [line.partition(": ")[0] for line in out.splitlines()]
    assert [name for name in listed if name in catalogue.NAMES] == list(catalogue.NAMES)
    code, out, _ = command("lab", "--json")
    assert [one["name"] for one in json.loads(out)["experiments"]] == list(catalogue.NAMES)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hogwilt"], 'no experiment named "hogwilt"; did you mean "hogwild"?'),
        (["hogwild", "--seeds", "0"], "seeds must be 1 or more (found 0)"),
        (["hogwild", "--seeds", "two"], "Invalid value for '--seeds'"),
        (["--quick"], "no experiment was named; give its NAME, or list them with: manyhands lab"),
        (["missing.py"], 'cannot load an experiment from "missing.py": there is no such file'),
        (["hogwild", "--run-dir", "taken"], "the run folder taken cannot be written"),
    ],
)
def test_bad_input_is_one_line(command: Command, words: list[str], told: str):
    Path("taken").write_text("a file")
    code, out, err = command("lab", *words)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_one_document_with_json_and_everything_else_beside_it(command: Command, fits: Fits):
    code, out, err = command("lab", "tiny", "--quick", "--json")
    result = json.loads(out)
    assert code == 0
    assert (result["experiment"], result["holds"]) == ("tiny", True)
    assert {"published", "measured", "verdict"} <= result.keys()
    assert Path(result["report"]).is_file()
    assert err.splitlines()[0] == "[1/2] slow"


def test_the_same_command_adds_the_seeds_that_are_missing(command: Command, fits: Fits):
    command("lab", "tiny", "--quick", "--seeds", "1", "--quiet")
    fits.since()
    code, _, err = command("lab", "tiny", "--quick", "--seeds", "2")
    assert code == 0
    assert fits.since() == [("slow", 1), ("fast", 1)]
    assert err.splitlines()[:2] == ["2 of 4 fits are already there and are not run again", "[3/4] slow, seed 1"]


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(command: Command, fits: Fits):
    fits.problems = {("fast", 0): KeyboardInterrupt()}
    code, out, err = command("lab", "tiny", "--quick")
    assert (code, out) == (130, "")
    assert err.splitlines()[-2:] == [
        "finished fits are kept in runs/lab-tiny-quick; the same command continues from there",
        "manyhands: interrupted",
    ]
    fits.problems = {}
    fits.since()
    assert command("lab", "tiny", "--quick")[0] == 0
    assert fits.since() == [("fast", 0)]


@pytest.mark.parametrize(("problem", "ends"), [(RankFailed("rank 0 died"), 1), (Refused("no room"), 0)])
def test_a_row_that_failed_ends_with_one_and_a_refused_one_does_not(
    command: Command, fits: Fits, problem: Exception, ends: int
):
    fits.problems = {("fast", 0): problem}
    code, out, _ = command("lab", "tiny", "--quick", "--quiet")
    assert code == ends
    assert f"fast: {problem}" in out
    assert "cannot be told here" in out
