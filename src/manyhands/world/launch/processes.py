"""Run a function on n processes of this host: first failure wins, nothing hangs, nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from ...errors import BadInput, PeerMissing, RankFailed
from ...model import torch_internals
from ..health.heartbeats import Board, death
from ..health.stacks import stacks
from ..shared_memory import anonymous_file, close_quietly, share_tensors
from .arithmetic import arithmetic
from .by_value import pack
from .fork_server import ask_for_ranks, check_system
from .keeper import Keeper
from .messages import ToRank
from .rank_process import LaunchedProcess, Surroundings
from .rendezvous import prepare

__all__ = ["LaunchedProcess", "check_descriptors", "launch"]

GRACE = 1.0  # seconds a failure that looks like a consequence waits for its cause
MOST_PROCESSES = 240  # the kernel passes at most 253 descriptors in one message
LOOK_UP = 0.2  # seconds after which the caller looks at the heartbeats even if nobody says a word


def launch(
    body: Callable[[LaunchedProcess], Any],
    processes: int,
    *,
    ranks: int | None = None,
    threads: int = 1,
    environment: Mapping[str, str] | None = None,
    shared: Mapping[str, Tensor] | None = None,
    preload: Sequence[str] = (),
    keep_memory: bool = True,
    on_tell: Callable[[int, str, Any], None] | None = None,
    on_ask: Callable[[str, Any], Any] | None = None,
    watch: Callable[[Board], RankFailed | None] | None = None,
    forgive: Callable[[RankFailed, Board], bool] | None = None,
    time_limit: float | None = None,
    ready: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Run `body` on `processes` processes and return what each gave back.

    `keep_memory` lets the processes' malloc keep freed memory (see keep_freed_memory). `preload` names modules that are
    slow to import: the server imports them once, for this launch and all later ones. `forgive` may let the launch go on
    after a death; that rank then returns None. `ready` is called once everything is packed: nothing can be refused now.
    """
    check_descriptors(processes)
    check_system()
    launched = _Launch(processes, ranks or processes)
    try:
        launched.start(body, threads, environment or {}, shared, preload, keep_memory, ready)
        return launched.wait(on_tell, on_ask, watch, forgive, time_limit)
    finally:
        launched.end()


def check_descriptors(processes: int) -> None:
    """A launch needs two descriptors a process here, and all of theirs travel in one message."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError):
        limit -= len(os.listdir("/dev/fd"))
    most = min((limit - 32) // 2, MOST_PROCESSES)
    if processes > most:
        raise BadInput(
            f"{processes} processes need more file descriptors than there are (room for {max(most, 0)}); "
            "use fewer ranks, or raise the limit (ulimit -n)"
        )


class _Launch:
    """The caller's side of one launch: its lines to the ranks and their keeper, and what has come back so far."""

    def __init__(self, processes: int, ranks: int):
        self.processes, self.ranks = processes, ranks
        self.board = Board(processes, ranks=ranks)
        self.stacks = anonymous_file(0, "manyhands-stacks")
        self.keeper = Keeper()
        self.lines: dict[int, ToRank] = {}
        self.selector = selectors.DefaultSelector()
        self.results: dict[int, Any] = {}
        self.failures: list[RankFailed] = []
        self.doubtful: list[RankFailed] = []  # those of them that may be consequences

    def start(
        self,
        body: Callable[[LaunchedProcess], Any],
        threads: int,
        environment: Mapping[str, str],
        shared: Mapping[str, Tensor] | None,
        preload: Sequence[str],
        keep_memory: bool,
        ready: Callable[[], None],
    ) -> None:
        content = pack(body)  # first, for it may fail
        meeting, port = prepare()
        memory, slots = share_tensors(shared) if shared is not None else (os.dup(self.board.fd), None)
        surroundings = Surroundings(
            processes=self.processes,
            ranks=self.ranks,
            threads=threads,
            environment={**os.environ, **environment},
            folder=os.getcwd(),
            path=list(sys.path),
            port=port,
            slots=slots,
            keep_memory=keep_memory,
            arithmetic=arithmetic(),
            without=torch_internals.missing(),
        )
        passed = {"meeting": meeting, "surroundings": pack(surroundings), "body": content, "shared": memory}
        pairs = [socket.socketpair() for _ in range(self.processes)]
        self.lines = {index: ToRank(mine) for index, (mine, _) in enumerate(pairs)}
        self.selector.register(self.keeper, selectors.EVENT_READ)
        for index, line in self.lines.items():
            self.selector.register(line, selectors.EVENT_READ, index)
        lent = {
            "control": self.keeper.theirs.fileno(),
            "stderr": _stderr(),
            "board": self.board.fd,
            "stacks": self.stacks,
        }
        try:
            ready()
            ask_for_ranks({**passed, **lent}, [theirs.fileno() for _, theirs in pairs], preload)
        finally:
            self.keeper.theirs.close()
            for _, theirs in pairs:
                theirs.close()
            close_quietly(*passed.values())

    def wait(
        self,
        on_tell: Callable[[int, str, Any], None] | None,
        on_ask: Callable[[str, Any], Any] | None,
        watch: Callable[[Board], RankFailed | None] | None,
        forgive: Callable[[RankFailed, Board], bool] | None,
        time_limit: float | None,
    ) -> list[Any]:
        """What each process returned; raises the first failure that is no consequence of another."""
        give_up: float | None = None
        limit = time.monotonic() + time_limit if time_limit else float("inf")
        while len(self.results) < self.processes:
            for index, kind, content in self._heard():
                if kind == "done":
                    self.results[index] = content
                elif kind == "failed":
                    content.detected_seconds = self.board.beat(index).seconds_ago
                    self.failures.append(content)
                elif kind == "gone":
                    if index not in self.results:
                        self.failures.append(self._death(index))
                elif kind == "ask":
                    self._answer(index, on_ask(*content) if on_ask else None)
                elif on_tell:
                    on_tell(index, kind, content)
            if watch and not self.failures and (stalled := watch(self.board)):
                stalled.traceback = stacks(self.board, self.stacks)
                self.failures.append(stalled)
            if forgive:
                for failure in [item for item in self.failures if forgive(item, self.board)]:
                    self._go_on_without(failure)
            if time.monotonic() > limit:
                raise RankFailed(f"the run passed its time limit of {round(time_limit or 0, 1):g} s", kind="time limit")
            if self.failures:
                causes = [item for item in self.failures if item.kind != "consequence" and item not in self.doubtful]
                give_up = give_up or time.monotonic() + GRACE
                if causes or time.monotonic() > give_up:
                    raise (causes or self.failures)[0]
        return [self.results[index] for index in range(self.processes)]

    def _heard(self) -> Iterator[tuple[int, str, Any]]:
        """What ranks have said (who, kind, content); `gone` where one has hung up. Waits a moment if nobody says a word."""
        for key, events in self.selector.select(timeout=LOOK_UP):
            if key.data is None:
                if not self.keeper.hear():
                    self.selector.unregister(self.keeper)
                continue
            index, line = key.data, self.lines[key.data]
            if events & selectors.EVENT_WRITE:
                self._flush(index)
            if not events & selectors.EVENT_READ:
                continue
            try:
                yield from ((index, kind, content) for kind, content in line.receive())
            except EOFError:
                self.selector.unregister(line)
                self.lines.pop(index).close()
                yield index, "gone", None

    def _answer(self, index: int, answer: Any) -> None:
        if index in self.lines:
            self.lines[index].send(answer)
            self._flush(index)

    def _flush(self, index: int) -> None:
        """Send what is left, and ask to be woken for the rest."""
        line = self.lines[index]
        line.flush()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.has_unsent else 0)
        self.selector.modify(line, events, index)

    def _death(self, index: int) -> RankFailed:
        """A rank went away without a word: say how it ended and where it was."""
        beat = self.board.beat(index)
        code = self.keeper.code_of(index)
        if code is None:
            how = "its process is gone"
        elif code < 0:
            how = f"killed by signal {-code} ({signal.Signals(-code).name})"
            if -code == signal.SIGKILL:
                how += "; the system does this when memory runs out"
        else:
            how = f"its process exited with code {code}"
        failure = death(self.board, beat, how)
        if code is not None and code > 0:
            self.doubtful.append(failure)  # it may have exited because another rank is gone
        return failure

    def _go_on_without(self, failure: RankFailed) -> None:
        """A rank the others go on without: it must be dead before its share is given to them."""
        index = failure.rank or 0

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.board.pid(index), signal.SIGKILL)

        self.failures.remove(failure)
        self.keeper.code_of(index, meanwhile=kill)
        try:
            self.board.bury(index)
        except PeerMissing:  # another one was stopped while it held the board's lock
            raise failure from None
        self.results[index] = None

    def end(self) -> None:
        """Close everything and leave no process."""
        self.selector.close()
        for line in self.lines.values():
            line.close()
        close_quietly(self.board.fd, self.stacks)
        self.keeper.end()


def _stderr() -> int:
    """The descriptor that ranks write to: the caller's standard error as it is now."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2
