"""A run in a line: what the list of runs shows of a stored and of a running one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ...record.live_state import STALE_SECONDS, State, process_gone, process_lives
from ...record.run import LARGEST_RECORD, RECORD_FILE, Run
from ...record.run_folder import LOCK
from ...record.untrusted import read_json
from ..figures import accuracy, number, speed
from .run_folders import own

Row = dict[str, Any]  # what is not known is left out
# What a line needs of a record.
FIELDS = (
    "schema", "task", "strategy", "options", "status", "reason", "ranks", "device", "started", "steps", "seconds",
    "samples_per_second", "rounds", "test",
)  # fmt: skip
LONGEST = 200  # letters of a reason


def stored_row(folder: Path) -> Row:
    """The line of a stored run; bad input if there is no record."""
    file = own(folder / RECORD_FILE)
    found = read_json(file, LARGEST_RECORD, only=FIELDS, unparsed="losses")
    run = Run.from_record(found if isinstance(found, dict) else {}, str(file))
    return _known(
        task=run.task,
        strategy=run.label,
        ranks=run.ranks,
        status=run.status,
        reason=(run.reason or "")[:LONGEST] or None,
        device=run.device,
        started=run.started,
        steps=run.steps,
        seconds=run.seconds,
        speed=speed(run),
        accuracy=accuracy(run),
    )


def running_row(state: State) -> Row:
    """The line of a run that goes on, or went on until its process ended."""
    silent = time.time() - state["time"]
    started = state.get("run", {}).get("started")
    losses = [loss for _, loss in state["curve"] if loss is not None]
    tested = [share for _, share in state["tested"] if share is not None]
    return _known(
        task=state["task"],
        strategy=state["strategy"],
        ranks=state["ranks"],
        status="crashed" if process_gone(state) else "running",
        device=state["device"],
        started=started if isinstance(started, str) else None,
        step=state["step"],
        steps=state["steps"],
        epoch=state["epoch"],
        epochs=state["epochs"],
        loss=losses[-1] if losses else None,
        speed=state["samples_per_second"],
        accuracy=tested[-1] if tested else None,
        silent=int(silent // STALE_SECONDS * STALE_SECONDS) or None,
    )


def starting(folder: Path, written: float) -> bool:
    """Whether the process that holds a folder lives: it is starting, or writing what it has trained."""
    try:
        number_text = own(folder / LOCK).read_text()[:32].strip()
    except (OSError, ValueError):
        return False
    return number_text.isdecimal() and process_lives(int(number_text), written)


def _known(**values: Any) -> Row:
    short = {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in values.items()}
    return {key: value for key, value in short.items() if isinstance(value, str) or number(value) is not None}
