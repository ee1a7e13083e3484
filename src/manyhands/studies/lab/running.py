"""Runs the parts of an experiment. A part that is finished, on this machine and with these settings, is not run again.

DIR/2-workers/seed-0/run.json     the run          DIR/2-workers/seed-0/lab.json   its settings, and extra figures
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import BadInput, ManyhandsError, RankFailed, Refused
from ...record.neighbours import Neighbours
from ...record.run import Run, environment
from ...record.untrusted import fits, read_json
from ...record.whole_file import whole
from ...strategies import make_strategy
from ...training.run_fit import run_fit
from ...training.settings import FitSettings
from .experiment import Experiment, Part, Scale
from .part_task import task_of
from .progress import LabProgress
from .table import Row, Table, read_figures

KEPT_FILE = "lab.json"
KEPT = {"settings": str, "figures": dict[str, float | None], "others_share": float | None}
LARGEST = 1 << 20  # bytes of it
LOOK_SECONDS = 1.0  # of a fit, below which nothing can be said of other processes
SAME = ("torch", "cpu", "gpu", "cores")  # of the environment: figures of another machine are not mixed with these


def run_parts(experiment: Experiment, scale: Scale, folder: Path, seeds: int | None, shown: LabProgress) -> Table:
    """Every part with every seed, seed after seed; what is already in the folder is read."""
    parts = list(experiment.parts(scale))
    _check(experiment, parts)
    asked = seeds or (experiment.quick_seeds if scale.quick else experiment.seeds)
    planned = [
        (part, seed) for seed in range(asked) for part in parts if seed < (asked if seeds else part.seeds or asked)
    ]
    here = environment()
    places = {(part.label, seed): _place(folder, experiment, scale, part, seed) for part, seed in planned}
    found = {
        (part.label, seed): _stored(places[part.label, seed], _settings(experiment, part, seed), here)
        for part, seed in planned
    }
    shown.begin([part.cost for part, seed in planned if found[part.label, seed] is None], len(planned))
    problems: dict[str, ManyhandsError] = {}
    try:
        for part, seed in planned:
            if found[part.label, seed] is None and part.label in problems:
                shown.skipped()
            elif found[part.label, seed] is None:
                shown.part(f"{part.label}, seed {seed}" if asked > 1 else part.label)
                try:
                    found[part.label, seed] = _fit(experiment, part, seed, places[part.label, seed], shown)
                except (Refused, RankFailed) as problem:
                    if problem.final:
                        raise
                    problems[part.label] = problem
                shown.part_ended(part.cost, _first_line(problems.get(part.label)))
    finally:
        shown.end()
    return Table(experiment, scale, [_row(experiment, part, parts, found, asked, problems) for part in parts])


def _check(experiment: Experiment, parts: Sequence[Part]) -> None:
    labels = [part.label for part in parts]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise BadInput(f"experiment {experiment.name} has two parts called {twice[0]!r}; rows need labels of their own")


def _row(
    experiment: Experiment,
    part: Part,
    parts: Sequence[Part],
    found: Mapping[tuple[str, int], Run | None],
    seeds: int,
    problems: Mapping[str, ManyhandsError],
) -> Row:
    runs = {seed: run for seed in range(seeds) if (run := found.get((part.label, seed))) is not None}
    beside = {
        seed: {one.label: other for one in parts if (other := found.get((one.label, seed))) is not None}
        for seed in runs
    }
    problem = problems.get(part.label)
    failed = isinstance(problem, RankFailed) and problem.kind != "loss"  # to diverge is a result
    figures, whose = read_figures(experiment.columns, runs, beside)
    return Row(part, list(runs.values()), figures, _first_line(problem), failed, whose)


def _first_line(problem: ManyhandsError | None) -> str | None:
    return None if problem is None else (str(problem).splitlines() or [type(problem).__name__])[0]


def _place(folder: Path, experiment: Experiment, scale: Scale, part: Part, seed: int) -> Path:
    """The label in letters that any disk takes, and what tells it from others: a quick run overwrites no whole one."""
    name = re.sub(r"[^a-z0-9]+", "-", part.label.lower()).strip("-") or "part"
    whose = hashlib.sha256(f"{experiment.name}\n{scale.quick}\n{part.label}".encode()).hexdigest()[:6]
    return folder / f"{name}-{whose}" / f"seed-{seed}"


def _settings(experiment: Experiment, part: Part, seed: int) -> str:
    """What a stored run must have been made with to stand for this part."""
    described = {
        "task": part.task if isinstance(part.task, str) else _described(part.task),
        "strategy": part.strategy,
        "fit": {key: _described(value) for key, value in sorted(part.fit.items())},
        "batch_size": part.batch_size,
        "change": {key: _described(value) for key, value in sorted(part.change.items())},
        "samples": [part.train_samples, part.test_samples],
        "device": experiment.device,
        "extra": _described(experiment.extra),
        "seed": seed,
    }
    return json.dumps(described, sort_keys=True)


def _described(value: Any) -> str:
    """A value in words that stay the same from one process to the next: functions by name and source, not by address."""
    if hasattr(value, "func"):  # a partial
        inside = [*map(_described, value.args), *(f"{key}={_described(item)}" for key, item in value.keywords.items())]
        return f"{_described(value.func)}({', '.join(inside)})"
    if not hasattr(value, "__qualname__"):
        return repr(value)
    try:
        source = hashlib.sha256(inspect.getsource(value).encode()).hexdigest()[:8]
    except (OSError, TypeError):  # built in, or typed at a prompt
        source = ""
    return f"{value.__qualname__} {source}".rstrip()


def _stored(place: Path, settings: str, here: Mapping[str, Any]) -> Run | None:
    kept = _kept(place)
    if kept is None or kept.get("settings") != settings:
        return None
    try:
        run = Run.load(place)
    except BadInput:
        return None
    if run.status != "done" or any(run.environment.get(name) != here[name] for name in SAME):
        return None
    return run


def _fit(experiment: Experiment, part: Part, seed: int, place: Path, shown: LabProgress) -> Run:
    task = task_of(part, seed)
    (place / KEPT_FILE).unlink(missing_ok=True)
    keywords = {"device": experiment.device, **part.fit}
    strategy = make_strategy(part.strategy, keywords.pop("ranks", None))
    epochs = keywords.get("epochs") or task.epochs
    settings = FitSettings.of(
        run_dir=place, progress=False, on_epoch=lambda entry: shown.epoch(entry.get("epoch", 0), epochs), **keywords
    )
    neighbours, began = Neighbours(), time.monotonic()
    neighbours.begin()
    run = run_fit(task, strategy, settings)
    others = neighbours.share_taken() if time.monotonic() - began > LOOK_SECONDS else None
    extra = dict(experiment.extra(task, run)) if experiment.extra else {}
    kept = {"settings": _settings(experiment, part, seed), "figures": extra, "others_share": others}
    with whole(place / KEPT_FILE) as scratch:
        scratch.write_text(json.dumps(kept, indent=1))
    return run


def figures(run: Run) -> dict[str, float]:
    """The extra figures kept beside a run of the lab: those that `Experiment.extra` worked out after the fit."""
    kept = _kept(run.folder) if run.folder else None
    return {key: value for key, value in (kept or {}).get("figures", {}).items() if value is not None}


def others_share(run: Run) -> float | None:
    """How much of the cores other processes took during a run of the lab, 0 to 1."""
    kept = _kept(run.folder) if run.folder else None
    return (kept or {}).get("others_share")


def _kept(place: Path) -> dict[str, Any] | None:
    """What stands beside a run, if it can be read: it is written last, so a run that was ended early has none."""
    try:
        kept = read_json(place / KEPT_FILE, LARGEST)
    except BadInput:
        return None
    return kept if fits(kept, KEPT) else None
