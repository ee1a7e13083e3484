"""Which folders below the root hold runs, and when their files last changed; nothing is opened to learn it.

A look costs two system calls per run folder: whoever adds, removes or replaces a file changes the time of its folder,
so folders whose time is the same need not be listed again. Links are never followed, so nothing outside is found.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import BadInput
from ...record.live import LIVE_FILE
from ...record.run import RECORD_FILE
from ...record.run_folder import CHECKPOINTS, LOCK

MOST_FOLDERS = 50_000  # somebody may serve a whole disk
SETTLED_SECONDS = 2.0  # a folder that changed later than this before it was listed may have changed again unseen
Stamp = tuple[int, int]  # when a file was last written (nanoseconds), and its size


@dataclass(frozen=True)
class Marks:
    """The files that make a folder a run's, as they are now."""

    record: Stamp | None = None
    live: Stamp | None = None
    lock: Stamp | None = None

    @property
    def running(self) -> bool:
        """Whether the live file is the news: a run that was killed leaves one, maybe beside the record of a run before."""
        return self.live is not None and (self.record is None or self.live[0] >= self.record[0])

    @property
    def stored(self) -> bool:
        return self.record is not None and not self.running


@dataclass
class _Listed:
    changed: int
    settled: bool
    below: list[str] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)  # which of the marks, and where


class RunFolders:
    """Call `look` whenever it matters; it remembers what it has listed."""

    def __init__(self, root: Path):
        self.root = root.resolve()
        self.more = False  # whether there were more folders than anybody should look through
        self._listed: dict[str, _Listed] = {}

    def look(self) -> dict[str, Marks]:
        """Folder (absolute) -> its files, for every folder that holds a run."""
        found, seen = dict[str, Marks](), dict[str, _Listed]()
        waiting = deque([str(self.root)])
        while waiting and len(seen) < MOST_FOLDERS:
            folder = waiting.popleft()
            try:
                seen[folder] = listed = self._list(folder)
            except OSError:  # removed meanwhile, or not ours to read
                continue
            waiting.extend(listed.below)
            if listed.files and (marks := _marks(listed.files)) is not None:
                found[folder] = marks
        self.more, self._listed = bool(waiting), seen
        return found

    def _list(self, folder: str) -> _Listed:
        changed = os.lstat(folder).st_mtime_ns
        known = self._listed.get(folder)
        if known is not None and known.settled and known.changed == changed:
            return known
        listed = _Listed(changed, settled=time.time_ns() - changed > SETTLED_SECONDS * 1e9)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in FILES:
                    listed.files.append((FILES[entry.name], entry.path))
                elif entry.name != CHECKPOINTS and entry.name[0] != "." and entry.is_dir(follow_symlinks=False):
                    listed.below.append(entry.path)
        return listed


FILES = {RECORD_FILE: "record", LIVE_FILE: "live", LOCK: "lock"}


def _marks(files: list[tuple[str, str]]) -> Marks | None:
    stamps = {}
    for mark, path in files:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            stamps[mark] = (status.st_mtime_ns, status.st_size)
    return Marks(**stamps) if stamps else None


def own(file: Path) -> Path:
    """The file, if it lies where its name says: below the root no name is a link."""
    if file.resolve() != file:
        raise BadInput(f"{file} is a link; runs are read from the folder that is served and nowhere else")
    return file
