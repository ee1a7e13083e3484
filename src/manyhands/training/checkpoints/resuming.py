"""Where a fit starts: from its own last checkpoint, from one of an earlier run in the folder, or from scratch.

A fit that starts from scratch puts the checkpoints it finds aside, into `checkpoints.before/`, then
`checkpoints.before-2/` and so on, once nothing can be refused any more. Nothing that was put aside is ever deleted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, published
from .read import Damaged, latest, load
from .same_task import first_difference

ASIDE = ".before"


def put_aside(folder: Path) -> Path | None:
    """Move a folder's checkpoints out of the way; where to, or None if it holds none."""
    if not published(folder):
        return None
    number = max((_number(other) for other in _put_aside(folder)), default=0) + 1
    target = folder.with_name(f"{folder.name}{ASIDE}{f'-{number}' if number > 1 else ''}")
    os.rename(folder, target)
    return target


def written_between(folder: Path, first: float, last: float) -> bool:
    """Whether a checkpoint of the folder was written, or gone on from, between two moments (seconds since 1970)."""
    return any(first <= path.stat().st_mtime < last for path in published(folder))


def newest(folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint of a folder; damaged ones are passed over and reported."""
    found, passed_over = latest(folder)
    for reason in passed_over:
        note(reason)
    return found


def earlier(folder: Path, task: Mapping[str, Any]) -> Checkpoint | None:
    """The newest whole checkpoint that was put aside and is of this task: what is left when a later fit left nothing."""
    for aside in sorted(_put_aside(folder), key=_number, reverse=True):
        for path in published(aside):
            try:
                found = load(path)
            except Damaged:
                continue
            if first_difference(found.task, task) is None:
                return found
    return None


def _put_aside(folder: Path) -> Iterator[Path]:
    return (path for path in folder.parent.glob(f"{folder.name}{ASIDE}*") if _number(path))


def _number(path: Path) -> int:
    """1 for `checkpoints.before`, n for `checkpoints.before-n`, 0 for anything else."""
    match = re.fullmatch(rf".*{re.escape(ASIDE)}(?:-(\d+))?", path.name)
    return int(match[1] or 1) if match else 0
