"""What the words of a command stand for: the task, where it can be found again, and the folder of a new run."""

from __future__ import annotations

import gc
import hashlib
import shlex
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..training import PRELOAD
from ..world.engines.requeue import job_number, requeues
from ..world.launch.fork_server import warm_up
from ..world.torchrun_variables import started_by_torchrun

if TYPE_CHECKING:
    from ..task import Task


def check_names(task: str | None, *strategies: str) -> None:
    """Refuse names that do not exist at once: everything after this imports torch, which takes seconds."""
    from ..strategies import check_names as check_strategy
    from ..tasks import check_names as check_task

    if task is not None:
        check_task(task)
    for strategy in strategies:
        check_strategy(strategy)


def begin(task: str | None, *strategies: str, on: str = "local", wait: str | None = None) -> None:
    """Refuse names that do not exist; then the server that ranks are forked from imports torch while this process does.

    `wait` is the device of a launch of one rank that is sure to come: its process is there, and has begun its GPU, by then.
    """
    check_names(task, *strategies)
    if on == "local" and not started_by_torchrun():
        warm_up(PRELOAD, wait)
    import_torch()


def import_torch() -> None:
    """Without looking for garbage among the hundred thousand objects that it makes and keeps: a tenth of its time."""
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def check_resume(resume: bool, folder: Path | None) -> None:
    """A new folder has nothing to resume; a job that Slurm started again finds its own."""
    if resume and folder is None and not job_number():
        raise BadInput("--resume needs --run-dir, the folder of the run to continue; `manyhands runs` lists the runs")


def warn_if_crowded(ranks: int, processes: int, chosen: Mapping[str, Any]) -> None:
    """Many more ranks than cores are allowed, but nobody should wait for them unawares."""
    from ..studies.doctor.crowd import crowd

    if started_by_torchrun():
        return  # its processes are there already
    if chosen["on"] == "local" and (said := crowd(ranks, processes, chosen["threads"], chosen["loader_workers"])):
        print(f"manyhands: {said}", file=sys.stderr)


def read_task(spec: str, batch_size: int | None = None, seed: int | None = None) -> Task:
    from ..tasks import load_task

    task = load_task(spec, batch_size)  # the task's own recipe may scale its rate with the batch
    return task if seed is None else task.replace(seed=seed)


def recorded_task(spec: str) -> str:
    """The task a record names. Records come from anywhere and loading runs the file, so it must be one of ours."""
    from ..tasks import task_file

    file = task_file(spec)
    if file is not None and not file.resolve().is_relative_to(Path.cwd()):
        raise BadInput(
            f"the run's record names {file}, outside of the current folder, and loading it runs it; "
            f"if you trust it, pass --task {spec}"
        )
    return spec


def task_source(spec: str) -> str:
    """What finds the task again from any folder."""
    path, colon, rest = spec.partition(":")
    return f"{Path(path).resolve()}{colon}{rest}" if path.endswith(".py") else spec


def new_folder(task: str, strategy: str) -> Path:
    """runs/<date>-<task>-<strategy>, with a number where that is taken. In a job of Slurm's its number stands for the date:
    the same command finds its folder again when the job was queued again."""
    name = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in f"{task or 'task'}-{strategy}")
    job, command = job_number(), hashlib.sha256(typed_command().encode()).hexdigest()[:4]
    base = Path("runs") / (f"slurm-{job}-{name}-{command}" if job else f"{datetime.now():%Y-%m-%d-%H%M%S}-{name}")
    folder, number = base, 2
    while folder.exists() and not requeues():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def typed_command() -> str:
    return shlex.join(["manyhands", *sys.argv[1:]])
