"""doctor(): what on this machine, and in this task, would make a fit slow or fail; each check a line with what to do."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from ...data.loader_parts import LoaderParts
from ...errors import BadInput
from ...record.cores import available_cores
from ...strategies import make_strategy
from ...strategies.contract import Strategy
from ...strategies.job import Job, StepSettings
from ...strategies.table import HANDFUL
from ...task import Task
from ...training.build import build
from ...training.travel import ADVICE, unsendable
from ...world.devices import default_ranks
from .check import Check, from_error, ok, problem
from .job_checks import check_batch, check_data, check_needs, check_strategy, read_some
from .machine import (
    check_cores,
    check_environment,
    check_files,
    check_governor,
    check_memory,
    check_processes,
    check_shared_memory,
    check_versions,
    free_memory,
)
from .needs import needs
from .surroundings import Load, check_gpus, check_launcher, check_network

LOOK_SECONDS = 1.0  # at others' load, at least
PREFETCHED = 2  # batches each loader worker holds ready


def doctor(
    task: Task | None = None,
    strategy: str | Strategy | None = None,
    ranks: int | None = None,
    *,
    threads: int | None = None,
    loader_workers: int | str | None = None,
) -> dict[str, Any]:
    """Look at the machine, and at a task where one is given; nothing is started.

    Returns `{"checks": [{"name", "status", "message", "advice"}]}`; a status is ok, warning or problem.
    """
    if task is not None and not isinstance(task, Task):
        raise BadInput(
            f"doctor needs a manyhands Task (found {type(task).__name__}); mh.load_task reads one from a file"
        )
    load, began = Load(), time.monotonic()
    settings = StepSettings(loader_workers=loader_workers)
    chosen = None if strategy is None else make_strategy(strategy, ranks)
    count = chosen.ranks if chosen is not None else ranks or default_ranks()
    workers = loader_workers if isinstance(loader_workers, int) else _own_workers(task)
    about_task, batch = _task_checks(task, settings, chosen, ranks, workers) if task is not None else ([], 0.0)
    time.sleep(max(0.0, LOOK_SECONDS - (time.monotonic() - began)))
    cores = available_cores()
    checks = [
        check_cores(),
        check_processes(cores, count, threads, workers),
        check_environment(cores, count),
        load.check(),
        *check_governor(),
        check_memory(),
        check_shared_memory(int(batch * PREFETCHED * workers)),
        check_files(count, workers),
        check_network(),
        *check_launcher(),
        check_gpus(count),
        check_versions(torch.__version__),
        *about_task,
    ]
    return {"checks": [asdict(check) for check in checks]}


def _own_workers(task: Task | None) -> int:
    """What a DataLoader of the task says."""
    return task.train.workers if task is not None and isinstance(task.train, LoaderParts) else 0


def _task_checks(
    task: Task, settings: StepSettings, chosen: Strategy | None, ranks: int | None, workers: int
) -> tuple[list[Check], float]:
    """The checks, and the bytes of one batch over all ranks."""
    refused = unsendable(task)
    travel = (
        problem("travel", refused, ADVICE)
        if refused
        else ok("travel", "all parts of the task can be sent to the ranks")
    )
    if travel.status != "ok":
        return [travel], 0.0
    try:
        job = build(task, settings)
    except BadInput as refusal:
        return [travel, from_error("task", refusal)], 0.0
    except Exception as error:  # of a factory: the model's, or what it calls
        words = f"making its model or data failed: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
        return [travel, problem("task", words, "fix the task's model or data function")], 0.0
    asked = [chosen] if chosen is not None else _handful(job, ranks)
    reading, free = read_some(job), free_memory()
    found = needs(job, free)
    judged = asked[-1] if chosen is None else chosen
    checks = [
        travel,
        *([check_strategy(job, chosen)] if chosen is not None else []),
        check_batch(job, judged),
        check_data(job, reading, found, judged, workers),
        check_needs(found, asked, job.task.batch_size, free),
    ]
    return checks, found.batch * job.task.batch_size


def _handful(job: Job, ranks: int | None) -> list[Strategy]:
    """Those that compare would run, and take the task; ddp last, the one most people mean."""
    made = [make_strategy(name, None if name == "single" else ranks) for name in (*HANDFUL, "ddp")]
    return [one for one in made if check_strategy(job, one, cut=False).status == "ok"] or made[-1:]
