"""The published MNIST job for the experiments that use it; on images the package draws where MNIST is not to be had."""

from __future__ import annotations

from functools import cache

from ...data import files
from ...task import Task
from ...tasks import load_task
from .table import Table


def mnist_or_drawn(options: str = "") -> Task:
    """`mnist` with options as in a spec (`slow,affine=no`). A Part names it by `partial`: nothing is read before its fit."""
    chosen = ",".join(filter(None, (options, "" if at_hand() else "drawn")))
    return load_task(f"mnist:{chosen}" if chosen else "mnist")


@cache
def at_hand() -> bool:
    try:
        files.mnist()
    except files.DataNotFound:
        return False
    return True


def remark(table: Table) -> str:
    """For the end of what was measured: a sentence where the images were not MNIST's."""
    drawn = any("drawn" in run.task for row in table for run in row.runs)
    return " MNIST was not at hand, so the images are digits drawn by the package." if drawn else ""
