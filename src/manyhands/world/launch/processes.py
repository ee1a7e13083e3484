"""Run a function on n processes of this host: first failure wins, nothing hangs, nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...errors import BadInput, PeerMissing, RankFailed
from ...model import torch_internals
from ..health.heartbeats import Board, death
from ..health.stacks import stacks
from ..shared_memory import anonymous_file, close_quietly, share_tensors
from .arithmetic import arithmetic
from .by_value import pack
from .conversation import LOOK_UP, Conversation, Forgive, Tell, Watch
from .fork_server import ask_for_ranks, check_system
from .keeper import Keeper
from .messages import ToRank
from .rank_process import LaunchedProcess, Surroundings
from .rendezvous import prepare

__all__ = ["LaunchedProcess", "Part", "check_descriptors", "launch"]

MOST_PROCESSES = 240  # the kernel passes at most 253 descriptors in one message


@dataclass(frozen=True)
class Part:
    """The processes of a launch that start on this host, where others start on other hosts."""

    first: int  # the first of them here
    processes: int  # of all hosts
    ranks: int  # those that train
    host: str  # what messages call this one
    store: tuple[str, int]  # where all of them meet


def launch(
    body: Callable[[LaunchedProcess], Any] | int,
    processes: int,
    *,
    ranks: int | None = None,
    part: Part | None = None,
    threads: int = 1,
    environment: Mapping[str, str] | None = None,
    shared: Mapping[str, Tensor] | None = None,
    preload: Sequence[str] = (),
    keep_memory: bool = True,
    on_tell: Tell | None = None,
    on_ask: Callable[[str, Any], Any] | None = None,
    watch: Watch | None = None,
    forgive: Forgive | None = None,
    time_limit: float | None = None,
    ready: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Run `body` (a function, or the file it was packed into) on `processes` processes and return what each gave back.

    `keep_memory` lets the processes' malloc keep freed memory (see keep_freed_memory). `preload` names modules that are
    slow to import: the server imports them once, for this launch and all later ones. `forgive` may let the launch go on
    after a death; that rank then returns None. `ready` is called once everything is packed: nothing can be refused now.
    """
    check_descriptors(processes)
    check_system()
    launched = _Launch(processes, ranks or processes, part)
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


class _Launch(Conversation):
    """The caller's side of one launch: its lines to the ranks and to their keeper."""

    def __init__(self, processes: int, ranks: int, part: Part | None):
        if part is None:
            board = Board(processes, ranks=ranks)
        else:
            here = range(part.first, part.first + processes)
            board = Board(part.processes, ranks=part.ranks, own=here, host=part.host)
        super().__init__(board, board.own)
        self.part = part
        self.stacks = anonymous_file(0, "manyhands-stacks")
        self.keeper = Keeper()
        self.lines: dict[int, ToRank] = {}
        self.selector = selectors.DefaultSelector()

    def start(
        self,
        body: Callable[[LaunchedProcess], Any] | int,
        threads: int,
        environment: Mapping[str, str],
        shared: Mapping[str, Tensor] | None,
        preload: Sequence[str],
        keep_memory: bool,
        ready: Callable[[], None],
    ) -> None:
        content = os.dup(body) if isinstance(body, int) else pack(body)  # first, for it may fail
        meeting, port = prepare()
        memory, slots = share_tensors(shared) if shared is not None else (os.dup(self.board.fd), None)
        surroundings = Surroundings(
            processes=self.board.processes,
            ranks=self.board.ranks,
            first=self.board.own.start,
            host=self.board.host,
            store=self.part.store if self.part else None,
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
        pairs = [socket.socketpair() for _ in self.expected]
        self.lines = {index: ToRank(mine) for index, (mine, _) in zip(self.expected, pairs, strict=True)}
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

    def heard(self) -> Iterator[tuple[int, str, Any]]:
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
                for kind, content in line.receive():
                    if kind == "failed":
                        content.detected_seconds = self.board.beat(index).seconds_ago
                        content.host = self.board.host
                    yield index, kind, content
            except EOFError:
                self.selector.unregister(line)
                self.lines.pop(index).close()
                yield index, "gone", None

    def answer(self, index: int, answer: Any) -> None:
        if index in self.lines:
            self.lines[index].send(answer)
            self._flush(index)

    def _flush(self, index: int) -> None:
        """Send what is left, and ask to be woken for the rest."""
        line = self.lines[index]
        line.flush()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.has_unsent else 0)
        self.selector.modify(line, events, index)

    def all_stacks(self) -> str:
        return stacks(self.board, self.stacks)

    def death(self, index: int) -> RankFailed:
        beat = self.board.beat(index)
        code = self.keeper.code_of(index - self.expected.start)
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

    def go_on_without(self, failure: RankFailed) -> None:
        """It must be dead before its share is given to the others."""
        index = failure.rank or 0

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.board.pid(index), signal.SIGKILL)

        self.failures.remove(failure)
        self.keeper.code_of(index - self.expected.start, meanwhile=kill)
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
