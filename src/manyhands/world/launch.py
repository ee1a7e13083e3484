"""Run a function on n processes of this host: first failure wins, nothing hangs, nothing is left behind."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput, RankFailed
from .doctor import answer_with_stacks, stacks
from .lines import Line, Link
from .memory import Slot, anonymous_file, attach_tensors, close_quietly, share_tensors
from .parcel import pack, unpack
from .watch import PID, Board, where, who

GRACE = 1.0  # seconds a failure that looks like a consequence waits for its cause
MOST_PROCESSES = 240  # the kernel passes at most 253 descriptors in one message
LOOK_UP = 0.2  # seconds after which the caller looks at the heartbeats even if nobody says a word
END_LIMIT = 5.0  # seconds the keeper may take to kill everything (it takes milliseconds)
_CONSEQUENCES = ("connection closed by peer", "connection reset", "broken pipe", "connection refused", "did not reach")


@dataclass(frozen=True)
class Scene:
    """What a process of a launch knows before it runs anything of the user's."""

    processes: int
    ranks: int  # those of the processes that train; the rest serve
    threads: int
    environment: dict[str, str]
    folder: str
    path: list[str]
    port: int
    slots: dict[str, Slot] | None
    keep_memory: bool = True


@dataclass
class Place:
    """What a launched function gets: who it is among the processes, and its lines to the others."""

    index: int
    processes: int
    ranks: int
    threads: int
    link: Link
    board: Board
    shared: dict[str, Tensor] | None
    listener: int  # a bound loopback socket: process 0 serves the store on it
    port: int


# ---------------------------------------------------------------- the caller's side


class _Server:
    """The caller's end of the fork server; started by the first launch of a program."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        source = str(Path(__file__).resolve().parents[2])
        code = (
            f"import sys, socket; sys.path.append({source!r}); "
            f"from manyhands.world.nursery import serve; serve(socket.socket(fileno={there.fileno()}))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, stdout=2
        )
        there.close()
        self.requests = here
        self.owner = os.getpid()

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, fds: list[int], preload: Sequence[str]) -> None:
        socket.send_fds(self.requests, [json.dumps(list(preload)).encode()], fds)


_server: _Server | None = None
_server_lock = threading.Lock()


@atexit.register
def _shut_down() -> None:
    """The server ends when its caller hangs up."""
    if _server is not None and _server.owner == os.getpid():
        _server.requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            _server.process.wait(timeout=2)


def warm_up() -> None:
    """Start the fork server now, so that its import of torch runs beside the caller's own work."""
    global _server
    if sys.platform not in ("linux", "darwin"):
        raise BadInput(f"manyhands runs on Linux and macOS (found {sys.platform}); use a Linux machine or WSL")
    with _server_lock:
        if _server is None or not _server.alive():
            _server = _Server()


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
    _check_descriptors(processes)
    warm_up()
    launched = _Launch(processes, ranks or processes)
    try:
        launched.start(body, threads, environment or {}, shared, preload, keep_memory)
        return launched.results(on_tell, on_ask, watch, forgive, time_limit)
    finally:
        launched.end()


def _check_descriptors(processes: int) -> None:
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
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.control, control_there = socket.socketpair()
        memory, slots = share_tensors(shared) if shared is not None else (None, None)
        scene = Scene(
            self.processes,
            self.ranks,
            threads,
            {**os.environ, **environment},
            os.getcwd(),
            list(sys.path),
            listener.getsockname()[1],
            slots,
            keep_memory,
        )
        stage = pack(scene)
        content = pack(body)
        pairs = [socket.socketpair() for _ in range(self.processes)]
        self.lines = {index: Line(mine) for index, (mine, _) in enumerate(pairs)}
        self.selector.register(self.control, selectors.EVENT_READ)
        for index, line in self.lines.items():
            self.selector.register(line, selectors.EVENT_READ, index)
        ours = [stage, content, *([memory] if memory is not None else [])]
        fds = [listener.fileno(), control_there.fileno(), stage, _stderr(), content, self.board.fd, self.stacks]
        fds += [memory if memory is not None else self.board.fd, *(theirs.fileno() for _, theirs in pairs)]
        try:
            assert _server is not None
            _server.ask(fds, preload)
        finally:
            listener.close()
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
        until = time.monotonic() + GRACE
        while index not in self.codes and self.control and time.monotonic() < until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.board.row(index)[PID], signal.SIGKILL)
            if wait([self.control], timeout=0.1):
                self._hear_keeper()
        try:
            self.board.bury(index)
        except TimeoutError:  # another one was stopped while it held the board's lock
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
            if "ended" in message:
                self.codes[message["ended"]] = message["code"]

    def _death(self, index: int) -> RankFailed:
        """A rank went away without a word: say how it ended and where it was."""
        ago = self.board.beat(index).seconds_ago
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
        beat = self.board.beat(index)
        failure = RankFailed(
            f"{who(index, self.ranks, self.processes)} died in {where(beat.step, beat.phase)}: {how}",
            rank=index,
            step=beat.step,
            phase=beat.phase,
            kind="died",
        )
        failure.detected_seconds = ago
        if code is not None and code > 0:
            self.doubtful.append(failure)  # it may have exited because another rank is gone
        return failure

    def end(self) -> None:
        """Close everything; the keeper kills what still runs, and we wait until it has."""
        self.selector.close()
        for line in self.lines.values():
            line.close()
        close_quietly(self.board.fd, self.stacks)
        if self.control:
            with contextlib.suppress(OSError):
                self.control.shutdown(socket.SHUT_WR)
                self.control.settimeout(END_LIMIT)
                while self.control.recv(65536):
                    continue
            self.control.close()


def _stderr() -> int:
    """The descriptor that ranks write to: the caller's standard error as it is now."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2


# ---------------------------------------------------------------- the rank's side


def rank_process(index: int, link: int, fds: Mapping[str, int]) -> None:
    """The life of one process of a launch, from the fork to its result (called by the keeper)."""
    connection = Link(link)
    board: Board | None = None
    try:
        scene: Scene = unpack(fds["scene"])
        board = Board(scene.processes, fds["board"])
        board.row(index)[PID] = os.getpid()
        answer_with_stacks(fds["stacks"])
        _enter(scene, index)
        shared = attach_tensors(fds["shared"], scene.slots) if scene.slots is not None else None
        body = unpack(fds["body"])
        close_quietly(fds["scene"], fds["body"], fds["shared"])
        place = Place(
            index,
            scene.processes,
            scene.ranks,
            scene.threads,
            connection,
            board,
            shared,
            fds["listener"],
            scene.port,
        )
        result = body(place)
        connection.tell("done", result)
    except BaseException as problem:
        failure = describe(problem, index, board)
        with contextlib.suppress(OSError):
            connection.tell("failed", failure)
        raise SystemExit(1) from None


def _enter(scene: Scene, index: int) -> None:
    """Take over the caller's surroundings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(scene.environment)
    os.environ.update(
        RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE=str(scene.processes), OMP_NUM_THREADS=str(scene.threads)
    )
    with contextlib.suppress(OSError):
        os.chdir(scene.folder)
    sys.path[:] = scene.path
    torch.set_num_threads(scene.threads)
    if scene.keep_memory:
        keep_freed_memory()


def keep_freed_memory() -> None:
    """Let malloc keep what a step frees for the next one.

    By default glibc gives tensors of more than 128 KiB back to the system at once, and every step then pays for its
    memory anew, page by page.
    """
    mmap_threshold, trim_threshold = -3, -1
    with contextlib.suppress(AttributeError, OSError):  # other C libraries have no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        if not mallopt(mmap_threshold, 1 << 30):
            mallopt(mmap_threshold, 1 << 25)  # the most that older ones accept
        mallopt(trim_threshold, 1 << 30)


def describe(problem: BaseException, index: int, board: Board | None) -> RankFailed:
    """An exception of a rank as one line with rank, step and phase, its traceback beside it."""
    if isinstance(problem, RankFailed) and problem.rank is not None:
        another = problem.rank != index and board is not None and problem.rank < board.processes
        if another:  # what one rank says of another: that one, or its end, knows better (not so of its own replicas)
            problem.kind = "consequence"
        return problem
    beat = board.beat(index) if board else None
    processes, ranks = (board.processes, board.ranks) if board else (index + 1, index + 1)
    text = str(problem).strip().split("\n")[0]
    name = type(problem).__name__
    consequence = isinstance(problem, OSError | RuntimeError) and any(
        word in str(problem).lower() for word in _CONSEQUENCES
    )
    step, phase = (beat.step, beat.phase) if beat else (None, None)
    return RankFailed(
        f"{who(index, ranks, processes)} failed in {where(step, phase)}: {name}: {text}",
        rank=index,
        step=step,
        phase=phase,
        kind="consequence" if consequence else "raised",
        traceback="".join(traceback.format_exception(problem)),
    )
