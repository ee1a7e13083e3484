"""A tracker at work, in a thread of its own: neither a slow server nor a broken one can hold up or end a fit."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ..untrusted import plain
from .contract import About, Row, Session, Tracker

if TYPE_CHECKING:
    from ..run import Run

GATHER_SECONDS = 1.0  # figures that come meanwhile are written together
FINISH_SECONDS = 60.0  # that a fit waits at its end for what is left to be written


def complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Writer:
    """Takes figures at once and hands them to the tracker's session when it is ready for them."""

    def __init__(
        self,
        tracker: Tracker,
        about: About,
        complain: Callable[[str], None] = complain,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.tracker, self._complain, self._say = tracker, complain, say
        self._off = False
        self._closing = threading.Event()
        self._items: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(about,), name=f"log-{tracker.name}", daemon=True)
        self._thread.start()

    def log(self, kind: str, rows: Sequence[Row]) -> None:
        self._put(kind, rows)

    def end(self, run: Run, page: str | None) -> None:
        self._put("end", (run, page))

    def begin_close(self, status: str) -> None:
        """From here on the rest is written without delay."""
        self._put("close", status)
        self._closing.set()

    def wait(self, until: float) -> None:
        """Until everything is written, but not for ever: `until` is a time of the monotonic clock."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._switch_off(f"it was not done in {FINISH_SECONDS:g} s")

    def close(self, status: str) -> None:
        self.begin_close(status)
        self.wait(time.monotonic() + FINISH_SECONDS)

    def _put(self, what: str, content: Any) -> None:
        if not self._off:
            self._items.put((what, content))

    # ------------------------------------------------------------ in the thread

    def _work(self, about: About) -> None:
        session: Session | None = None
        try:
            session = self.tracker.open(about)
            if session.where is not None:
                self._say(f"{about.name}: logged to {self.tracker.name}, {session.where}")
            while self._hand_over(session, *self._gathered()):
                pass
        except Exception as problem:
            self._switch_off(f"{type(problem).__name__}: {problem}")
            if session is not None:
                with contextlib.suppress(Exception):
                    session.close("failed")

    def _gathered(self) -> tuple[dict[str, list[Row]], dict[str, Any]]:
        """All figures that are there, by kind, and what ends the session if that has come."""
        items = [self._items.get()]
        self._closing.wait(GATHER_SECONDS)
        with contextlib.suppress(Empty):
            while True:
                items.append(self._items.get_nowait())
        rows: dict[str, list[Row]] = {}
        last: dict[str, Any] = {}
        for what, content in items:
            if what in ("end", "close"):
                last[what] = content
            else:
                rows.setdefault(what, []).extend(content)
        return rows, last

    def _hand_over(self, session: Session, rows: dict[str, list[Row]], last: dict[str, Any]) -> bool:
        """Whether more is to come."""
        for kind, found in rows.items():
            session.log(kind, found)
        if "end" in last:
            session.end(*last["end"])
        if "close" in last:
            session.close(last["close"])
        return "close" not in last

    def _switch_off(self, reason: str) -> None:
        if not self._off:
            self._off = True
            first = next(iter(reason.strip().splitlines()), "")
            self._complain(f"--log {self.tracker.name} was switched off, the run is not affected: {plain(first)}")
