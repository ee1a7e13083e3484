"""Many more ranks than cores: what that means, before they start."""

from __future__ import annotations

from ...errors import BadInput
from ...record.cores import available_cores
from .check import size
from .machine import check_processes, free_memory
from .needs import PROCESS

CROWDED = 2  # ranks per core, from which on it is reported
HOPELESS = 2  # times the free memory for the processes alone


def crowd(ranks: int, processes: int, threads: int | None, workers: int | str | None) -> str | None:
    """A line for a fit whose ranks share cores with many others; refuses one whose processes memory cannot hold."""
    cores = available_cores()
    if ranks <= CROWDED * cores:
        return None
    each = workers if isinstance(workers, int) else 0
    started, free = processes + each * ranks, free_memory()
    needed = started * PROCESS
    if needed > HOPELESS * free:
        most = max(1, (int(free / PROCESS) - (processes - ranks)) // (1 + each))
        raise BadInput(
            f"{started} processes need at least {size(needed)} of memory, but {size(free)} are free; "
            f"use --ranks {most} or fewer"
        )
    check = check_processes(cores, ranks, threads, each)
    return (
        f"{check.message} ({ranks / cores:.0f} per core), so steps are far slower than with {check.advice}; "
        f"{started} processes need at least {size(needed)} of the {size(free)} of memory that are free"
    )
