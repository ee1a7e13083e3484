"""All runs of a folder as lines, kept up to date: a record is read once, and a viewer gets only what has changed."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import BadInput
from ...record.live import LIVE_FILE
from ...record.live_state import State, read_state
from ...record.run import RECORD_FILE, TIMELINE_FILE, Run
from ...record.untrusted import plain
from .run_folders import Marks, RunFolders, own
from .running import as_run
from .summaries import Row, running_row, starting, stored_row

LOOK_SECONDS = 1.0  # however many viewers ask, the folder is looked through once in so long
READ_SECONDS = 0.4  # of reading records per answer: a viewer sees the newest runs at once, the others soon after
MOST_GONE = 10_000
KEPT_BYTES = 1 << 25  # of records that are kept whole, for those who follow a running run beside stored ones
LEFT_BEHIND = "its process ended before it could write a record"


class Line(NamedTuple):
    """A run in the list: since which version it stands there, and what it was made from."""

    version: int
    row: Row
    folder: Path
    marks: Marks


class View(NamedTuple):
    """A run to be looked at: the record, what it says now if it runs, and what the page was made from."""

    run: Run
    state: State | None
    made_from: tuple[Any, ...]


class Listing:
    """Answers from any thread. Runs have names made from where they lie, and are found by these alone."""

    def __init__(self, root: Path):
        self._folders = RunFolders(root)
        self._lines: dict[str, Line] = {}
        self._gone: dict[str, int] = {}  # id -> the version in which it went
        self._unreadable: dict[str, Marks] = {}
        self._version = self._reading = 0
        self._oldest = 1  # changes since an older version are not known
        self._looked = float("-inf")
        self._states: dict[str, tuple[Marks, State]] = {}
        self._runs: OrderedDict[str, tuple[Marks, Run]] = OrderedDict()
        self._lock = threading.Lock()

    def changes(self, since: int = 0) -> dict[str, Any]:
        """The lines that are new or other than in version `since`, and which have gone; version 0 has none."""
        with self._lock:
            self._look()
            everything = not self._oldest <= since <= self._version
            rows = [{"id": id, **line.row} for id, line in self._lines.items() if everything or line.version > since]
            return {
                "version": self._version,
                "everything": everything,
                "runs": sorted(rows, key=lambda row: str(row.get("started", "")), reverse=True),
                "gone": [] if everything else [id for id, version in self._gone.items() if version > since],
                "reading": self._reading,
                "unreadable": len(self._unreadable),
                "more": self._folders.more,
            }

    def views(self, ids: list[str]) -> list[View]:
        """Runs by their names; bad input names one that is not there."""
        with self._lock:
            self._look()
            unknown = [id for id in ids if id not in self._lines]
            if unknown:
                raise BadInput(f"no run {plain(unknown[0])[:40]!r} in this folder; it may have been removed")
            return [self._view(id, self._lines[id]) for id in dict.fromkeys(ids)]

    def _look(self) -> None:
        if time.monotonic() - self._looked < LOOK_SECONDS and not self._reading:
            return
        found = {_id(self._folders.root, folder): (folder, marks) for folder, marks in self._folders.look().items()}
        until, self._reading, next_version = time.monotonic() + READ_SECONDS, 0, self._version + 1
        for id, (folder, marks) in sorted(found.items(), key=lambda item: _written(item[1][1]), reverse=True):
            line = self._lines.get(id)
            if line is not None and line.marks == marks and marks.stored:
                continue
            row = self._row(id, Path(folder), marks, until)
            if row is not None:
                self._put(id, {**row, "folder": self._shown(folder)}, Path(folder), marks, next_version)
            elif line is not None and not self._waits(id, marks):
                self._drop(id, next_version)
        for id in self._lines.keys() - found.keys():
            self._drop(id, next_version)
        self._unreadable = {id: marks for id, marks in self._unreadable.items() if id in found}
        self._states = {id: kept for id, kept in self._states.items() if id in self._lines}
        self._looked = time.monotonic()

    def _row(self, id: str, folder: Path, marks: Marks, until: float) -> Row | None:
        """What the list says of a folder now; None: nothing, or it could not be read yet."""
        line = self._lines.get(id)
        if self._unreadable.get(id) == marks:
            return None
        try:
            if marks.running:
                state = self._state(id, folder, marks)
                return None if state is None else running_row(state)
            if marks.stored:
                if time.monotonic() > until:
                    self._reading += 1
                    return None
                return stored_row(folder)
        except BadInput:
            self._unreadable[id] = marks
            return None
        if marks.lock is not None and starting(folder, marks.lock[0] / 1e9):
            return (
                {**line.row, "status": "saving"} if line is not None and "task" in line.row else {"status": "starting"}
            )
        return None

    def _waits(self, id: str, marks: Marks) -> bool:
        """Whether a line stays although nothing new is known: its record has changed and is yet to be read."""
        return self._reading > 0 and marks.stored and self._unreadable.get(id) != marks

    def _put(self, id: str, row: Row, folder: Path, marks: Marks, version: int) -> None:
        line = self._lines.get(id)
        changed = line is None or line.row != row
        self._version = version if changed else self._version
        self._lines[id] = Line(version if changed or line is None else line.version, row, folder, marks)
        self._gone.pop(id, None)

    def _drop(self, id: str, version: int) -> None:
        del self._lines[id]
        self._gone[id] = self._version = version
        if len(self._gone) > MOST_GONE:  # who has not asked since gets everything again
            self._gone.clear()
            self._oldest = version

    def _state(self, id: str, folder: Path, marks: Marks) -> State | None:
        """The live file, read again only where it was written again."""
        known = self._states.get(id)
        if known is not None and known[0] == marks:
            return known[1]
        own(folder / LIVE_FILE)
        state = read_state(folder)
        if state is not None:
            self._states[id] = (marks, state)
        return state

    def _view(self, id: str, line: Line) -> View:
        status, state = str(line.row["status"]), None
        if line.marks.running:
            state = self._state(id, line.folder, line.marks)
        elif not line.marks.stored and id in self._states:  # it has ended and is being saved
            state = self._states[id][1]
        if state is not None:
            run = as_run(state, status, LEFT_BEHIND if status == "crashed" else None)
        elif line.marks.stored:
            run = self._stored(id, line)
        else:  # nothing is written yet
            run = Run(task=line.folder.name, strategy="?", status=status)
        run.folder = line.folder
        return View(run, state, (id, line.marks, status, line.row.get("silent")))

    def _stored(self, id: str, line: Line) -> Run:
        kept = self._runs.get(id)
        if kept is None or kept[0] != line.marks:
            for name in (RECORD_FILE, TIMELINE_FILE):
                own(line.folder / name)
            kept = self._runs[id] = (line.marks, Run.load(line.folder, weights=False))
        self._runs.move_to_end(id)
        while sum(_size(marks) for marks, _ in self._runs.values()) > KEPT_BYTES:
            self._runs.popitem(last=False)
        return kept[1]

    def _shown(self, folder: str) -> str:
        root = self._folders.root
        return plain(os.path.relpath(folder, root) if folder != str(root) else root.name)


def _id(root: Path, folder: str) -> str:
    """A name that says nothing and stays the same."""
    return hashlib.sha256(os.fsencode(folder.removeprefix(str(root)))).hexdigest()[:12]


def _size(marks: Marks) -> int:
    return 0 if marks.record is None else marks.record[1]


def _written(marks: Marks) -> int:
    return max(stamp[0] for stamp in (marks.record, marks.live, marks.lock) if stamp is not None)
