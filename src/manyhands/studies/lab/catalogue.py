"""Which experiments there are. An experiment is a file in experiments/ that defines EXPERIMENT; this is their order."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from ...errors import BadInput, did_you_mean
from ...tasks import run_file
from .experiment import Experiment

NAMES = (
    "loader-workers",
    "strategies",
    "batch-size",
    "without-batchnorm",
    "model-against-data-parallel",
    "hogwild",
    "parameter-server",
    "accumulation",
    "first-device",
)
FOLDER = Path(__file__).parent / "experiments"


class Entry(NamedTuple):
    """What a list says of an experiment."""

    name: str
    title: str
    claim: str
    takes: tuple[str, str]


def experiments() -> list[Entry]:
    """What there is, read from the files without running them: that would load torch, which takes seconds."""
    return [_entry(name) for name in NAMES]


def experiment(name: str) -> Experiment:
    """A built-in experiment by its name, or that of a file: `loader-workers`, `my_experiment.py`."""
    if name.endswith(".py"):
        return _from_file(Path(name))
    if name not in NAMES and Path(f"{name}.py").is_file():
        raise BadInput(f'no experiment named "{name}"; did you mean the file "{name}.py"?')
    if name not in NAMES:
        raise BadInput(f'no experiment named "{name}"{did_you_mean(name, NAMES)}')
    found: Experiment = import_module(f".experiments.{_stem(name)}", __package__).EXPERIMENT
    return found


def _entry(name: str) -> Entry:
    tree = ast.parse((FOLDER / f"{_stem(name)}.py").read_text(encoding="utf-8"))
    [made] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.targets[0]) == "EXPERIMENT"
    ]
    words = {word.arg: word.value for word in made.keywords}
    try:
        title, claim = (ast.literal_eval(words[key]) for key in ("title", "claim"))
        takes = ast.literal_eval(words["takes"]) if "takes" in words else ("", "")
    except (KeyError, ValueError):  # put together when the file is run
        whole = experiment(name)
        title, claim, takes = whole.title, whole.claim, whole.takes
    return Entry(name, title, claim, takes)


def _stem(name: str) -> str:
    return name.replace("-", "_")


def _from_file(path: Path) -> Experiment:
    found = getattr(run_file(path, "an experiment"), "EXPERIMENT", None)
    if not isinstance(found, Experiment):
        there = "no `EXPERIMENT`" if found is None else f"`EXPERIMENT` as a {type(found).__name__}"
        raise BadInput(f"{path} defines {there}; it must be an Experiment (manyhands.studies.lab)")
    return found
