"""Parts are run once: what is run again and what is not, and what a part that cannot be run leaves of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import BadInput, RankFailed, Refused
from manyhands.studies.lab import Part, running
from manyhands.studies.lab.experiment import Experiment, Scale
from manyhands.studies.lab.progress import LabProgress
from manyhands.studies.lab.running import figures, run_parts
from manyhands.studies.lab.table import Table

from .tiny import QUICK, WHOLE, Fits, task, tiny

SLOW, FAST = ("slow", 0), ("fast", 0)


def go(experiment: Experiment, seeds: int | None = None, scale: Scale = QUICK, folder: str = "lab") -> Table:
    return run_parts(experiment, scale, Path(folder), seeds, LabProgress(False))


def only(pattern: str) -> Path:
    [found] = Path("lab").glob(pattern)
    return found


def test_what_is_finished_is_read_and_not_run_again(fits: Fits):
    first = go(tiny())
    assert fits.since() == [SLOW, FAST]
    again = go(tiny())
    assert fits.since() == []
    assert [row.figures for row in again] == [row.figures for row in first] == [{"seconds": [2.0]}, {"seconds": [1.0]}]
    assert again["slow"].runs[0].weights is not None


def test_another_seed_is_added_to_those_that_are_there(fits: Fits):
    go(tiny(), seeds=1)
    fits.since()
    table = go(tiny(), seeds=2)
    assert fits.since() == [("slow", 1), ("fast", 1)]
    assert len(table["slow"].runs) == 2


def test_seeds_are_interleaved_and_a_long_part_may_have_fewer(fits: Fits):
    long = tiny(Part("slow", task, seeds=1), Part("fast", task))
    go(long, scale=WHOLE)
    assert fits.since() == [SLOW, FAST, ("fast", 1)]
    go(long, seeds=2, scale=WHOLE, folder="asked")  # who asks for seeds gets them
    assert fits.since() == [SLOW, FAST, ("slow", 1), ("fast", 1)]


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": "ddp", "fit": {"ranks": 2}},
        {"fit": {"epochs": 2}},
        {"batch_size": 5},
        {"change": {"epochs": 3}},
        {"train_samples": 8},
        {"test_samples": 8},
        {"task": "glyphs"},
    ],
    ids=str,
)
def test_a_part_with_another_setting_is_run_again(fits: Fits, change: dict[str, Any]):
    part = Part("slow", task)
    go(tiny(part))
    fits.since()
    go(tiny(replace(part, **change)))
    assert fits.since() == [SLOW]


def in_json(file: str, *keys: str, value: Any) -> Callable[[], None]:
    """The same file with one thing in it changed."""

    def change() -> None:
        path = only(f"slow-*/seed-0/{file}")
        document = inner = json.loads(path.read_text())
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        path.write_text(json.dumps(document))

    return change


def spoilt(file: str, text: str | None) -> Callable[[], None]:
    def change() -> None:
        path = only(f"slow-*/seed-0/{file}")
        path.unlink() if text is None else path.write_text(text)

    return change


@pytest.mark.parametrize(
    "change",
    [
        in_json("run.json", "environment", "torch", value="1.0"),
        in_json("run.json", "environment", "cpu", value="another"),
        in_json("run.json", "environment", "cores", value=512),
        in_json("run.json", "environment", "gpu", value="another"),
        in_json("run.json", "status", value="stopped"),
        in_json("lab.json", "figures", value=["no", "figures"]),
        in_json("lab.json", "figures", value={"first": "text"}),
        in_json("lab.json", "settings", value=None),
        spoilt("lab.json", None),  # a run that was killed: it is written last
        spoilt("lab.json", "{"),
        spoilt("lab.json", "[]"),
        spoilt("run.json", None),
        spoilt("run.json", "{}"),
        spoilt("weights.safetensors", "none"),
    ],
)
def test_what_another_machine_made_and_what_is_damaged_is_run_again(fits: Fits, change: Callable[[], None]):
    go(tiny())
    fits.since()
    change()
    table = go(tiny())
    assert fits.since() == [SLOW]
    assert table["slow"].figures == {"seconds": [2.0]}


def test_a_part_that_is_refused_or_fails_is_a_row_with_its_reason_and_the_rest_goes_on(fits: Fits):
    fits.problems = {
        SLOW: Refused("needs more\nthan one line"),
        ("bad", 1): RankFailed("rank 0 died"),
        ("far", 0): RankFailed("the loss is nan", kind="loss"),
    }
    table = go(tiny(*(Part(label, task) for label in ("slow", "bad", "far", "fast"))), seeds=3)
    assert [(row.label, row.problem, row.failed, len(row.runs)) for row in table] == [
        ("slow", "needs more", False, 0),
        ("bad", "rank 0 died", True, 1),
        ("far", "the loss is nan", False, 0),  # to diverge is a result
        ("fast", None, False, 3),
    ]
    asked = fits.since()  # a part with a problem is not tried with the seeds that follow
    assert [asked.count(one) for one in (SLOW, ("slow", 1), ("bad", 1), ("bad", 2), ("fast", 2))] == [1, 0, 1, 0, 1]
    assert table.ratio("seconds", "bad", "fast") == (2.0, 2.0, 2.0)  # of the seed that both have
    go(tiny(*(Part(label, task) for label in ("slow", "bad", "far", "fast"))), seeds=1)
    assert fits.since() == [SLOW, ("far", 0)]


def test_a_failure_that_ends_the_process_ends_the_experiment(fits: Fits):
    """Under torchrun a failed rank is about to be ended: no other fit can follow."""
    failure = RankFailed("gone")
    failure.final = True
    fits.problems = {SLOW: failure}
    with pytest.raises(RankFailed, match="gone"):
        go(tiny())
    assert fits.since() == [SLOW]


@pytest.mark.parametrize("problem", [BadInput("no such data"), KeyboardInterrupt()])
def test_bad_input_and_ctrl_c_end_it_and_keep_what_is_finished(fits: Fits, problem: BaseException):
    fits.problems = {FAST: problem}
    with pytest.raises(type(problem)):
        go(tiny())
    assert fits.since() == [SLOW, FAST]
    fits.problems = {}
    go(tiny())
    assert fits.since() == [FAST]


def test_two_labels_of_the_same_letters_have_folders_of_their_own(fits: Fits):
    table = go(tiny(Part("2 x 4", task), Part("2-X-4", task), Part("+", task), Part("日本", task)))
    folders = [row.runs[0].folder for row in table]
    assert len(set(folders)) == 4
    assert all(str(folder).isascii() for folder in folders)


def test_two_parts_of_one_label_are_refused():
    with pytest.raises(BadInput, match="experiment tiny has two parts called 'slow'; rows need labels of their own"):
        go(tiny(Part("slow", task), Part("slow", task)))
    with pytest.raises(BadInput, match="a part of an experiment needs a label"):
        Part("", task)


def test_a_quick_run_in_the_same_folder_overwrites_no_whole_one(fits: Fits):
    go(tiny(), seeds=1, scale=WHOLE)
    go(tiny(replace(tiny().parts(QUICK)[0], train_samples=8)), seeds=1)
    go(tiny(name="other"), seeds=1)
    fits.since()
    go(tiny(), seeds=1, scale=WHOLE)
    assert fits.since() == []


def test_extra_figures_are_worked_out_once_and_kept_beside_the_run(fits: Fits):
    worked: list[int] = []

    def extra(task: Any, run: Any) -> dict[str, float | None]:
        worked.append(task.batch_size)
        return {"first": 1e-7, "unknown": None}

    for _ in range(2):
        table = go(tiny(extra=extra))
        assert [figures(row.runs[0]) for row in table] == [{"first": 1e-7}] * 2
    assert worked == [10, 20]
    only("slow-*/seed-0/lab.json").write_text("[]")
    assert figures(table["slow"].runs[0]) == {}


def test_functions_and_values_are_told_apart_by_what_they_are_not_by_their_address():
    """An address changes from one process to the next, and the part would be run again every time."""
    told = running._settings(tiny(), Part("a", task, change={"augment": task, "loss": len}), 0)
    assert "0x" not in told
    assert told != running._settings(tiny(), Part("a", tiny, change={"augment": task, "loss": len}), 0)
