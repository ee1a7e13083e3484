"""Run a function on n processes of this host: first failure wins, nothing hangs, nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from torch import Tensor

from ...errors import BadInput, PeerMissing, RankFailed
from ...model import torch_internals as torch_parts
from ..health.heartbeats import Board, death
from ..health.stacks import stacks
from ..shared_memory import anonymous_file, close_quietly, share_tensors
from .arithmetic import arithmetic
from .by_value import pack
from .fork_server import ask_for_ranks, warm_up
from .messages import Line
from .rank_process import Place, Scene
from .rendezvous import prepare

__all__ = ["Place", "check_descriptors", "launch"]

GRACE = 1.0  # seconds a failure that looks like a consequence waits for its cause
MOST_PROCESSES = 240  # the kernel passes at most 253 descriptors in one message
LOOK_UP = 0.2  # seconds after which the caller looks at the heartbeats even if nobody says a word
END_LIMIT = 5.0  # seconds the keeper may take to kill everything (it takes milliseconds)


def launch(
    body: Callable[[Place], Any],
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
) -> list[Any]:
    """Run `body` on `processes` processes and return what each gave back.

    `keep_memory` lets the processes' malloc keep freed memory (see keep_freed_memory). `preload` names modules that are slow to import: the server imports them once, for this launch and all later
    ones. `forgive` may let the launch go on after a death; that rank then returns None.
    """
    check_descriptors(processes)
    warm_up()
    launched = _Launch(processes, ranks or processes)
    try:
        launched.start(body, threads, environment or {}, shared, preload, keep_memory)
        return launched.results(on_tell, on_ask, watch, forgive, time_limit)
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
    def __init__(self, processes: int, ranks: int):
        self.processes, self.ranks = processes, ranks
        self.board = Board(processes, ranks=ranks)
        self.stacks = anonymous_file(0, "manyhands-stacks")
        self.lines: dict[int, Line] = {}
        self.selector = selectors.DefaultSelector()
        self.pids: list[int] = []
        self.keeper: int | None = None
        self.codes: dict[int, int] = {}
        self.doubtful: list[RankFailed] = []
        self.control: socket.socket | None = None
        self._rest = b""  # of what the keeper says

    def start(
        self,
        body: Callable[[Place], Any],
        threads: int,
        environment: Mapping[str, str],
        shared: Mapping[str, Tensor] | None,
        preload: Sequence[str],
        keep_memory: bool,
    ) -> None:
        meeting, port = prepare()
        self.control, control_there = socket.socketpair()
        memory, slots = share_tensors(shared) if shared is not None else (None, None)
        scene = Scene(
            self.processes,
            self.ranks,
            threads,
            {**os.environ, **environment},
            os.getcwd(),
            list(sys.path),
            port,
            slots,
            keep_memory,
            arithmetic(),
            torch_parts.missing(),
        )
        stage = pack(scene)
        content = pack(body)
        pairs = [socket.socketpair() for _ in range(self.processes)]
        self.lines = {index: Line(mine) for index, (mine, _) in enumerate(pairs)}
        self.selector.register(self.control, selectors.EVENT_READ)
        for index, line in self.lines.items():
            self.selector.register(line, selectors.EVENT_READ, index)
        ours = [meeting, stage, content, *([memory] if memory is not None else [])]
        fds = [meeting, control_there.fileno(), stage, _stderr(), content, self.board.fd, self.stacks]
        fds += [memory if memory is not None else self.board.fd, *(theirs.fileno() for _, theirs in pairs)]
        try:
            ask_for_ranks(fds, preload)
        finally:
            control_there.close()
            for _, theirs in pairs:
                theirs.close()
            close_quietly(*ours)

    def results(
        self,
        on_tell: Callable[[int, str, Any], None] | None,
        on_ask: Callable[[str, Any], Any] | None,
        watch: Callable[[Board], RankFailed | None] | None,
        forgive: Callable[[RankFailed, Board], bool] | None,
        time_limit: float | None,
    ) -> list[Any]:
        results: dict[int, Any] = {}
        failures: list[RankFailed] = []
        give_up: float | None = None
        limit = time.monotonic() + time_limit if time_limit else None
        while len(results) < self.processes:
            for index, kind, content in self._heard():
                if kind == "done":
                    results[index] = content
                elif kind == "failed":
                    content.detected_seconds = self.board.beat(index).seconds_ago
                    failures.append(content)
                elif kind == "gone":
                    if index not in results:
                        failures.append(self._death(index))
                elif kind == "ask":
                    self._answer(index, on_ask(*content) if on_ask else None)
                elif on_tell:
                    on_tell(index, kind, content)
            if watch and not failures and (stalled := watch(self.board)):
                stalled.traceback = stacks(self.board, self.stacks)
                failures.append(stalled)
            if forgive:
                for failure in [item for item in failures if item.rank is not None and forgive(item, self.board)]:
                    failures.remove(failure)
                    self._bury(failure)
                    results[failure.rank or 0] = None
            if time_limit and limit and time.monotonic() > limit:
                raise RankFailed(f"the run passed its time limit of {round(time_limit, 1):g} s", kind="time limit")
            if failures:
                causes = [item for item in failures if item.kind != "consequence" and item not in self.doubtful]
                give_up = give_up or time.monotonic() + GRACE
                if causes or time.monotonic() > give_up:
                    raise (causes or failures)[0]
        return [results[index] for index in range(self.processes)]

    def _bury(self, failure: RankFailed) -> None:
        """A rank the others go on without: it must be dead before its share is given to them."""
        index = failure.rank or 0
        self._wake_keeper()
        until = time.monotonic() + GRACE
        while index not in self.codes and self.control and time.monotonic() < until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.board.pid(index), signal.SIGKILL)
            if wait([self.control], timeout=0.1):
                self._hear_keeper()
        try:
            self.board.bury(index)
        except PeerMissing:  # another one was stopped while it held the board's lock
            raise failure from None

    def _heard(self) -> Iterator[tuple[int, str, Any]]:
        """What ranks have said (who, kind, content); `gone` where one has hung up. Waits a moment if nobody says a word."""
        for key, events in self.selector.select(timeout=LOOK_UP):
            if key.data is None:
                self._hear_keeper()
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

    def _hear_keeper(self) -> None:
        if self.control is None:
            return  # it hung up while one asked how a rank died
        try:
            heard = self.control.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return  # what was announced has been read meanwhile, by one who asked how a rank died
        if not heard:
            self.selector.unregister(self.control)
            self.control.close()
            self.control = None
            return
        *lines, self._rest = (self._rest + heard).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.pids = message.get("pids", self.pids)
            self.keeper = message.get("keeper", self.keeper)
            if "ended" in message:
                self.codes[message["ended"]] = message["code"]

    def _death(self, index: int) -> RankFailed:
        """A rank went away without a word: say how it ended and where it was."""
        beat = self.board.beat(index)
        self._wake_keeper()
        until = time.monotonic() + GRACE
        while index not in self.codes and self.control and time.monotonic() < until:
            if wait([self.control], timeout=0.1):
                self._hear_keeper()
        code = self.codes.get(index)
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

    def end(self) -> None:
        """Close everything; the keeper kills what still runs, and we wait until it has. If it does not, we do."""
        self.selector.close()
        for line in self.lines.values():
            line.close()
        close_quietly(self.board.fd, self.stacks)
        if self.control:
            try:
                self.control.shutdown(socket.SHUT_WR)
                self.control.settimeout(END_LIMIT)
                self._wake_keeper()
                while self.control.recv(65536):
                    continue
            except TimeoutError:
                self._kill_keeper()
            except OSError:
                pass
            self.control.close()

    def _wake_keeper(self) -> None:
        """It may have been stopped (Ctrl-Z, SIGSTOP). While it holds its end of the control socket it is alive."""
        if self.control and self.keeper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.keeper, signal.SIGCONT)

    def _kill_keeper(self) -> None:
        """The ranks first, with their loader workers: as long as their keeper has not reaped them, the numbers are theirs."""
        for kill, pid in [*((os.killpg, pid) for pid in self.pids), (os.kill, self.keeper)]:
            if pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)


def _stderr() -> int:
    """The descriptor that ranks write to: the caller's standard error as it is now."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2
