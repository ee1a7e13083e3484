"""lab(): run a published experiment again, and say whether its claim holds on this machine.

parts -> fits (running.py) -> table of figures (table.py) -> verdict, curves -> result.json and page
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import BadInput
from ...record.cores import available_cores
from ...record.neighbours import BUSY
from ...record.run import environment, finite
from ...record.run_folder import held
from ...record.whole_file import whole
from .catalogue import experiment as find
from .experiment import Experiment, Scale, Verdict
from .progress import LabProgress
from .running import others_share, run_parts
from .table import Table, as_data, runs_of

RESULT_FILE, PAGE_FILE = "result.json", "report.html"
HOLDS = {
    True: "The claim holds here",
    False: "The claim does not hold here",
    None: "Whether it holds cannot be told here",
}


def lab(
    name: str | os.PathLike[str] | Experiment,
    *,
    quick: bool = False,
    seeds: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run an experiment and return what result.json holds: published and measured figures, curves and the verdict.

    `name` is a built-in one, a file that defines EXPERIMENT, or an Experiment itself.
    `quick` takes at most four minutes on two cores, with reduced data. `seeds` overrides how often each fit is
    repeated. Everything is kept in `run_dir` (runs/lab-NAME): asked again, it runs only what is not there yet.
    """
    chosen = name if isinstance(name, Experiment) else find(os.fspath(name))
    if seeds is not None and seeds < 1:
        raise BadInput(f"seeds must be 1 or more (found {seeds})")
    folder = Path(run_dir) if run_dir is not None else default_folder(chosen.name, quick)
    scale = scale_here(quick)
    began = time.monotonic()
    asked = chosen.name if isinstance(name, Experiment) else os.fspath(name)
    with held(folder):
        table = run_parts(chosen, scale, folder, seeds, LabProgress(progress))
        result = outcome(chosen, table, time.monotonic() - began)
        result["command"] = command(asked, quick, seeds)
        with whole(folder / RESULT_FILE) as scratch:
            scratch.write_text(json.dumps(result, indent=1, allow_nan=False), encoding="utf-8")
    return result


def command(name: str, quick: bool, seeds: int | None) -> str:
    """What repeats it, and goes on with it."""
    words = ["manyhands lab", shlex.quote(name), "--quick" if quick else "", f"--seeds {seeds}" if seeds else ""]
    return " ".join(filter(None, words))


def default_folder(name: str, quick: bool) -> Path:
    return Path("runs") / f"lab-{name}{'-quick' if quick else ''}"


def scale_here(quick: bool) -> Scale:
    import torch

    return Scale(quick, available_cores(), torch.cuda.device_count())


def outcome(experiment: Experiment, table: Table, seconds: float) -> dict[str, Any]:
    """The result as plain data: what `lab --json` prints and what page and docs are made from."""
    verdict = judged(experiment, table)
    columns = [{"key": one.key, "heading": one.heading, "form": one.form} for one in experiment.columns]
    rows = [as_data(row) for row in table]
    found: dict[str, Any] = finite(
        {
            "experiment": experiment.name,
            "title": experiment.title,
            "claim": experiment.claim,
            "source": experiment.source,
            "quick": table.scale.quick,
            "note": experiment.quick_note if table.scale.quick else "",
            "columns": columns,
            "published": [{"row": row["row"], **row["published"]} for row in rows if row["published"]],
            "measured": [
                {"row": row["row"], **row["measured"], "problem": row["problem"], "failed": row["failed"]}
                for row in rows
            ],
            "curves": [
                {
                    "title": curve.title,
                    "x": curve.x,
                    "y": curve.y,
                    "logarithmic": curve.logarithmic,
                    "lines": [
                        {
                            "name": line.name,
                            "published": line.published,
                            "points": [list(point) for point in line.points],
                        }
                        for line in curve.lines(table)
                        if line.points
                    ],
                }
                for curve in experiment.curves
            ],
            "holds": verdict.holds,
            "finding": verdict.measured,
            "why": verdict.why,
            "verdict": sentence(experiment, verdict),
            "runs": [runs_of(row) for row in table if row.runs],
            "environment": environment(),
            "version": __version__,
            "seeds": max((len(row.runs) for row in table), default=0),
            "date": max((str(run.started) for row in table for run in row.runs if run.started), default=None),
            "seconds": seconds,
        }
    )
    return found


def judged(experiment: Experiment, table: Table) -> Verdict:
    """The verdict; where other processes took the cores meanwhile, what was measured ends with that."""
    verdict = experiment.judge(table)
    shares = [share for row in table for run in row.runs if (share := others_share(run)) is not None]
    taken = statistics.median(shares) if shares else 0.0
    if taken <= BUSY:
        return verdict
    crowd = f"Other processes used {taken:.0%} of the cores meanwhile: measure speeds again on a quiet machine."
    return replace(verdict, measured=f"{verdict.measured} {crowd}")


def sentence(experiment: Experiment, verdict: Verdict) -> str:
    """Published claim, measured, holds or not, why."""
    return f"Published: {experiment.claim} Measured: {verdict.measured} {HOLDS[verdict.holds]}: {verdict.why}"
