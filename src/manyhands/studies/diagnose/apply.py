"""The best change made for good: the job is run with it, and what that gained is measured against the job as it was."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...record.run import Run
from ...training.run_fit import run_fit
from ..slices import per_sample, run_slice
from .advice import Advice
from .job import Diagnosed
from .whole import Parts

WHOLE_SECONDS = 90.0  # a job this short is run as it was, too


def apply_best(
    job: Diagnosed, best: Advice, parts: Parts, folder: str | os.PathLike[str] | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the whole job with the change, and keep it in `folder` if there is one."""
    say(f"the whole job with {best.label}")
    obtained = _in_steps(job, best, folder) if best.variant is not None else _beside_steps(job, best, parts, folder)
    return {"change": best.label, "promised": best.gain.middle, "speedup": obtained}


def _in_steps(job: Diagnosed, best: Advice, folder: str | os.PathLike[str] | None) -> float:
    """The time per sample of the whole job, between two slices of the job as it was."""
    assert best.variant is not None
    base = job.variant()
    run_slice(base, 0.1)  # its pace
    before = run_slice(base, 1.0)
    step = replace(best.variant.settings.step, epochs=job.settings.step.epochs)
    run = run_fit(
        best.variant.task,
        best.variant.strategy,
        replace(best.variant.settings, step=step, run_dir=folder or best.variant.settings.run_dir),
    )
    around = [one for one in (before, run_slice(base, 1.0)) if one is not None]
    return statistics.fmean(map(per_sample, around)) / per_sample(run)


def _beside_steps(job: Diagnosed, best: Advice, parts: Parts, folder: str | os.PathLike[str] | None) -> float:
    """Seconds of the whole job, which is run as it was too where it is short; else those that were worked out."""
    assert best.settings is not None
    was = _seconds(run_fit(job.task, job.strategy, job.settings)) if parts.total <= WHOLE_SECONDS else parts.total
    settings = replace(best.settings, run_dir=folder or best.settings.run_dir)
    return was / _seconds(run_fit(job.task, job.strategy, settings))


def _seconds(run: Run) -> float:
    parts = (run.startup_seconds, run.seconds, run.evaluation_seconds, run.checkpoint_seconds, run.pause_seconds)
    return sum(part or 0.0 for part in parts)
