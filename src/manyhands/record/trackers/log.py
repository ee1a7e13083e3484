"""What is logged of a fit, and when: its parameters as it starts, losses and figures epoch by epoch, the rest at the end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from .. import presentation
from ..run import Run
from .contract import About, Tracker
from .figures import EPOCHS, LIVE, STEPS, epoch_row, live_row, parameters
from .writer import FINISH_SECONDS, Writer, complain

LIVE_SECONDS = 1.0


class Log:
    """Hears how a fit goes and hands it to its trackers. They are opened when nothing can be refused any more."""

    def __init__(
        self,
        trackers: Sequence[Tracker],
        run: Run,
        folder: str | os.PathLike[str] | None = None,
        group: str | None = None,
        warn: Callable[[str], None] = complain,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.run = run
        self._trackers, self._group, self._warn, self._say = trackers, group, warn, say
        self._folder = Path(folder).absolute() if folder is not None else None
        self._writers: list[Writer] = []
        self._step = 0  # the last whose loss was logged
        self._told = 0.0

    def hear(self, kind: str, content: Any) -> None:
        if not self._trackers:
            return
        if kind == "starting" and not self._writers:
            self._begin()
        elif kind == "losses":
            self._losses(*content)
        elif kind == "epoch":
            self._log(EPOCHS, [epoch_row(content, self._step)])
        elif kind == "progress" and time.monotonic() - self._told >= LIVE_SECONDS:
            self._told = time.monotonic()
            self._log(LIVE, [live_row(content)])

    def finish(self, page: str | None = None) -> bool:
        """Tell the trackers the end and wait for them all together; says whether one complained."""
        noted = len(self.run.notes)
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.end(self.run, page if writer.tracker.keeps_page else None)
            writer.begin_close(self.run.status)
        until = time.monotonic() + FINISH_SECONDS
        for writer in writers:
            writer.wait(until)
        return len(self.run.notes) > noted

    @property
    def keeps_page(self) -> bool:
        return any(writer.tracker.keeps_page for writer in self._writers)

    def _begin(self) -> None:
        run = self.run
        name = f"{run.task} {run.label} {run.ranks} rank{'s' * (run.ranks != 1)}"
        about = About(name, parameters(run), self._folder, self._group)
        self._writers = [Writer(tracker, about, self._complain, self._say) for tracker in self._trackers]

    def _losses(self, first: int, each: int, losses: Sequence[float | None]) -> None:
        """Of the steps after `first`, `each` together. After a restart some come again, and are not logged twice."""
        rows = [
            {"step": step, "loss": loss}
            for step, loss in zip(count((first // each + 1) * each, each), losses, strict=False)
            if loss is not None and step > self._step
        ]
        self._step = max(self._step, first + len(losses))
        self._log(STEPS, rows)

    def _log(self, kind: str, rows: list[dict[str, Any]]) -> None:
        for writer in self._writers:
            writer.log(kind, rows)

    def _complain(self, text: str) -> None:
        self.run.notes.append(text)
        self._warn(text)


class Logs:
    """The logs of one fit, or of all fits of a comparison: those stay open until it is over and its page is there."""

    def __init__(self, trackers: Sequence[Tracker], group: str | None = None):
        self.trackers, self.group = trackers, group
        self._open: list[Log] = []

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """What ends a comparison ends its logs; else they wait for `finish`."""
        if kind is not None:
            self.finish([])

    def open(
        self,
        run: Run,
        folder: str | os.PathLike[str] | None,
        warn: Callable[[str], None],
        say: Callable[[str], None],
    ) -> Log:
        """`warn` is heard always, `say` where progress is shown."""
        log = Log(self.trackers, run, folder, self.group, warn, say)
        self._open.append(log)
        return log

    def finish(self, runs: Sequence[Run]) -> None:
        """End them all with the report of `runs`. Where one complains only now, its record is kept again with the note."""
        logs, self._open = self._open, []
        page = _page(runs) if runs and any(log.keeps_page for log in logs) else None
        for log in logs:
            if log.finish(page) and log.run.folder is not None:
                with contextlib.suppress(OSError):
                    log.run.save(log.run.folder)


def _page(runs: Sequence[Run]) -> str | None:
    try:
        return str(presentation.pages().page(runs))
    except Exception as problem:  # a page is no reason to lose a run
        complain(f"the report could not be made for the trackers: {type(problem).__name__}: {problem}")
        return None
