"""lab(): the result of an experiment as one document, kept in a folder that one of them uses at a time."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from manyhands.errors import BadInput, Refused
from manyhands.record.neighbours import Neighbours
from manyhands.record.run_folder import held
from manyhands.studies.lab import Column, running
from manyhands.studies.lab.lab import lab

from .tiny import Fits, tiny


def test_the_result_is_written_as_it_is_returned(fits: Fits):
    result = lab(tiny(), quick=True, progress=False)
    assert json.loads(Path("runs/lab-tiny-quick/result.json").read_text()) == result
    assert result["verdict"] == (
        "Published: slow is slower than fast. Measured: 2.0x. The claim holds here: it is so."
    )  # claim, measured, holds or not, why
    assert (result["holds"], result["seeds"], result["note"]) == (True, 1, "less of everything")
    assert [row["seconds"]["median"] for row in result["measured"]] == [2.0, 1.0]
    assert result["command"] == "manyhands lab tiny --quick"


def test_speeds_of_a_crowded_machine_are_called_so(fits: Fits, monkeypatch: pytest.MonkeyPatch):
    """On two cores shared with six others `loader-workers` refuted its claim without a word about them."""
    monkeypatch.setattr(running, "LOOK_SECONDS", -1.0)
    monkeypatch.setattr(Neighbours, "share_taken", lambda self: 0.6)
    verdict = lab(tiny(), quick=True, progress=False)["verdict"]
    crowd = "Other processes used 60% of the cores meanwhile: measure speeds again on a quiet machine."
    assert f"Measured: 2.0x. {crowd} The claim holds here" in verdict
    monkeypatch.setattr(Neighbours, "share_taken", lambda self: pytest.fail("they were asked again"))
    assert lab(tiny(), quick=True, progress=False)["verdict"] == verdict  # it is kept with the runs


def test_a_whole_run_has_a_folder_and_seeds_of_its_own(fits: Fits):
    lab(tiny(), progress=False)
    assert fits.since() == [("slow", 0), ("fast", 0), ("slow", 1), ("fast", 1)]
    result = lab(tiny(), progress=False, seeds=3)
    assert fits.since() == [("slow", 2), ("fast", 2)]
    assert (result["seeds"], result["note"]) == (3, "")
    assert result["command"] == "manyhands lab tiny --seeds 3"
    assert Path("runs/lab-tiny/result.json").is_file()


def test_a_row_that_did_not_run_leaves_a_verdict(fits: Fits):
    fits.problems = {("fast", 0): Refused("there is no room")}
    result = lab(tiny(), quick=True, progress=False)
    assert result["holds"] is None
    assert "Whether it holds cannot be told here: a row is missing." in result["verdict"]
    assert result["measured"][1] == {"row": "fast", "problem": "there is no room", "failed": False}


def test_figures_that_are_not_finite_are_null(fits: Fits):
    endless = Column("seconds", "total s", lambda run, others: math.inf if run.seconds == 2.0 else math.nan)
    result = lab(tiny(columns=(endless,)), quick=True, progress=False)
    assert [row["seconds"]["median"] for row in result["measured"]] == [None, None]


def test_two_at_a_time_do_not_share_a_folder(fits: Fits):
    with held("runs/lab-tiny"), pytest.raises(BadInput, match="runs/lab-tiny is in use by another run"):
        lab(tiny(), progress=False)
    assert fits.since() == []


def test_a_folder_that_cannot_be_written_is_named_before_anything_starts(fits: Fits):
    Path("taken").write_text("a file")
    with pytest.raises(BadInput, match=r"the run folder taken cannot be written \(.*\); use another --run-dir"):
        lab(tiny(), run_dir="taken", progress=False)
    assert fits.since() == []


@pytest.mark.parametrize("seeds", [0, -1])
def test_there_is_at_least_one_seed(seeds: int):
    with pytest.raises(BadInput, match=rf"seeds must be 1 or more \(found {seeds}\)"):
        lab(tiny(), seeds=seeds)
