"""A job of Slurm's that was put back into the queue and started again: its fits go on where they were."""

from __future__ import annotations

import os
from pathlib import Path

JOB_FILE = ".slurm-job"


def job_number() -> str | None:
    """Of the job this program runs in."""
    return os.environ.get("SLURM_JOB_ID")


def requeues() -> int:
    """How often Slurm has started this job again."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0")) if job_number() else 0


def first_used(folder: Path) -> float | None:
    """When an earlier start of this job first trained into the folder; None if there was none.

    Slurm forgets when a job that it starts again had begun. The time is the file's, as that of checkpoints is: the clocks
    of two nodes may differ.
    """
    job, file = job_number(), folder / JOB_FILE
    if job is None:
        return None
    if requeues() and file.exists() and file.read_text().strip() == job:
        return file.stat().st_mtime
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{job}\n")
    return None
