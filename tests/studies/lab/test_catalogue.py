"""Which experiment a name means: a built-in one, or a file of one's own that is run, resumed and judged like any other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import manyhands as mh
from manyhands.errors import BadInput
from manyhands.studies.lab.catalogue import NAMES, experiment, experiments
from tests.conftest import ROOT, Command
from tests.test_docs import blocks

EXAMPLE = blocks(ROOT / "docs" / "lab.md", "python")[0]


def test_every_experiment_is_named_as_its_file_and_tells_what_it_is_about() -> None:
    for name, listed in zip(NAMES, experiments(), strict=True):
        one = experiment(name)
        assert one.name == listed.name == name
        assert (one.title, one.claim, one.takes) == (listed.title, listed.claim, listed.takes)
        assert one.title
        assert one.claim.endswith(".")
        assert one.source
        assert one.quick_note
        assert not one.quick_note.endswith(".")
        headings = [column.heading for column in one.columns]
        assert len(set(headings)) == len(headings)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("loader-worker", None, 'no experiment named "loader-worker"; did you mean "loader-workers"?'),
        ("nothing-like-it", None, 'no experiment named "nothing-like-it"; there are: '),
        ("none.py", None, 'cannot load an experiment from "none.py": there is no such file'),
        ("empty.py", "x = 1", "empty.py defines no `EXPERIMENT`; it must be an Experiment"),
        ("wrong.py", "EXPERIMENT = {}", "wrong.py defines `EXPERIMENT` as a dict; it must be an Experiment"),
        ("broken.py", "x = 1\ny = z", "broken.py: line 2: NameError: name 'z' is not defined"),
        (
            "odd.py",
            EXAMPLE.replace('"small-batches"', '"../up"'),
            r'lower-case letters, digits and dashes (found "../up")',
        ),
        (
            "form.py",
            EXAMPLE.replace('".2%"', '".2percent"'),
            'column "accuracy" has the form ".2percent", which format()',
        ),
    ],
)
def test_what_is_no_experiment_is_one_line(name: str, text: str | None, message: str) -> None:
    if text is not None:
        Path(name).write_text(text)
    with pytest.raises(BadInput, match=re.escape(message)) as found:
        experiment(name)
    assert "\n" not in str(found.value)


def test_a_file_named_without_its_ending_is_offered() -> None:
    Path("mine.py").write_text(EXAMPLE)
    with pytest.raises(BadInput, match=r'no experiment named "mine"; did you mean the file "mine.py"\?'):
        experiment("mine")


def test_a_file_of_ones_own_is_run_once_and_judged_again(command: Command, tmp_path: Path) -> None:
    """What a function that makes a task says is part of a fit's settings; what the judge says is not."""
    made = """
def small():
    import manyhands as mh
    return mh.load_task("glyphs:train=64,test=32").replace(seed=SEED)
"""
    text = (
        EXAMPLE.replace("def parts", made + "\n\ndef parts").replace(", task,", ", small,").replace(", 256: 0.91", "")
    )
    file = tmp_path / "my_experiment.py"
    file.write_text(text.replace("SEED", "1"))
    words = ["lab", "my_experiment.py", "--quick", "--seeds", "1", "--json"]
    code, out, err = command(*words)
    first = json.loads(out)
    assert code == 0, err
    assert first["experiment"] == "small-batches"
    assert first["command"] == "manyhands lab my_experiment.py --quick --seeds 1"
    assert [row["accuracy"]["seeds"] for row in first["measured"]] == [1]
    kept = tmp_path / "runs" / "lab-small-batches-quick"
    assert Path(first["report"]) == kept / "report.html"
    for row in first["runs"]:
        assert [(kept / folder / "run.json").is_file() for folder in row["folders"]] == [True]
    assert first["date"] == max(mh.Run.load(kept / row["folders"][0]).started for row in first["runs"])

    file.write_text(text.replace("SEED", "1").replace("both batch sizes are needed", "there is one row"))
    code, out, err = command(*words)
    assert "1 of 1 fits are already there" in err
    again = json.loads(out)
    assert again["measured"] == first["measured"]
    assert (first["why"], again["why"]) == ("both batch sizes are needed.", "there is one row.")

    file.write_text(text.replace("SEED", "2"))
    _code, _out, err = command(*words)
    assert "already there" not in err

    code, out, err = command("report", str(kept))
    assert code == 0, err  # a folder of folders of runs was no run
    assert "batch of 32" in Path(out.strip()).read_text()


def test_a_function_is_known_by_its_source(tmp_path: Path) -> None:
    from manyhands.studies.lab.running import _described
    from manyhands.tasks import run_file

    told = []
    for text in ("def f():\n    return 1\n", "def f():\n    return 2\n", "\ndef f():\n    return 2\n"):
        file = tmp_path / f"file_{len(told)}.py"
        file.write_text(text)
        told.append(_described(run_file(file).f))
    assert told[0] != told[1] == told[2]
    assert _described(max) == "max"
