"""What a running run says of itself: its live file, read within bounds, and whether its process still lives."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any, TypedDict, get_type_hints

from ..errors import BadInput
from .live import LIVE_FILE
from .untrusted import fits, read_json

STALE_SECONDS = 10.0  # after so long without news, say so
SURE_SECONDS = 3.0  # a file this young has somebody who writes it, whatever its process is called here
LARGEST = 1 << 22  # bytes of a live file; a run of 200 ranks writes a hundredth of that
MOST_PROCESSES = 1 << 22  # of Linux; beyond that no process has a number


class _Always(TypedDict):
    time: float
    task: str
    strategy: str
    ranks: int
    device: str | None
    step: int | None
    steps: int | None
    epoch: int | None
    epochs: int | None
    samples_per_second: float | None
    beats: list[tuple[int, int, str]] | None
    phases_ms: dict[str, float]
    curve: list[tuple[int, float | None]]
    tested: list[tuple[int, float | None]]


class State(_Always, total=False):
    """What a live file says (live.py); older versions did not write all of it."""

    pid: int
    host: str
    run: dict[str, Any]  # the record so far
    cores: list[float]  # percent of each
    gpus: list[tuple[float, float]]  # percent and bytes of each


def read_state(folder: Path) -> State | None:
    """What the run says now; None once it has ended."""
    file = folder / LIVE_FILE
    try:
        found: Any = read_json(file, LARGEST)
    except BadInput:
        if file.exists():
            raise
        return None
    known = found if isinstance(found, dict) else {}
    wrong = [
        key
        for key, form in get_type_hints(State).items()
        if (not fits(known[key], form) if key in known else key in _Always.__annotations__)
    ]
    if wrong:
        raise BadInput(f"{file} does not hold what a run writes there (wrong: {', '.join(wrong)})")
    state: State = found
    return state


def process_gone(state: State) -> bool:
    """Whether the process that wrote this is known to have ended: it ran on this host, and nothing is heard of it."""
    if state.get("host", platform.node()) != platform.node() or time.time() - state["time"] < SURE_SECONDS:
        return False
    return "pid" in state and not process_lives(state["pid"], state["time"])


def process_lives(number: int, then: float) -> bool:
    """Whether the process that had this number at a time still lives; a later one may have got the same number."""
    import psutil

    if not 0 < number < MOST_PROCESSES:
        return False
    try:
        process = psutil.Process(number)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.create_time() < then + 1)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # somebody else's: it is there
        return True
