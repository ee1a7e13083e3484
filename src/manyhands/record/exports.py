"""Stored runs: find the records below a folder."""

from __future__ import annotations

from pathlib import Path

from ..errors import BadInput
from .run import RECORD_FILE, Run


def find_runs(
    root: Path,
    task: str | None = None,
    strategy: str | None = None,
    status: str | None = None,
    unreadable: list[str] | None = None,
    series: bool = True,
) -> list[Run]:
    """Every readable run below a folder, newest first; what is no record is passed over, and why goes to `unreadable`.

    `series` as in Run.load.
    """
    if not root.is_dir():
        raise BadInput(f"no folder {root}; runs are kept in runs/ unless --run-dir said otherwise")
    found = []
    for record in root.rglob(RECORD_FILE):
        try:
            run = Run.load(record, weights=False, series=series)
        except BadInput as problem:
            if unreadable is not None:
                unreadable.append(str(problem))
            continue
        wanted = ((task, run.task.split(":")[0]), (strategy, run.strategy), (status, run.status))
        if all(asked is None or asked == has for asked, has in wanted):
            found.append(run)
    return sorted(found, key=lambda run: run.started or "", reverse=True)
