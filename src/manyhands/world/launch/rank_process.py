"""The life of one process of a launch: from the fork, through the caller's function, to its result or its failure."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import PeerMissing, RankFailed
from ...model import torch_internals
from ..health.heartbeats import PID, Board, where, who
from ..health.stacks import answer_with_stacks
from ..shared_memory import Slot, attach_tensors, close_quietly
from .arithmetic import set_arithmetic
from .by_value import unpack
from .messages import ToCaller

# What torch says, in text alone, when a peer is gone: gloo's words, and the name of our exception where it went through C++.
_PEER_IS_GONE = (
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "connection refused",
    f"{PeerMissing.__name__.lower()}: ",
)


@dataclass(frozen=True)
class Surroundings:
    """What a process of a launch takes over from its caller before it runs anything of the user's."""

    processes: int  # of all hosts
    ranks: int  # those of the processes that train; the rest serve
    threads: int
    environment: dict[str, str]
    folder: str
    path: list[str]
    port: int | None
    slots: dict[str, Slot] | None
    keep_memory: bool = True
    arithmetic: dict[str, Any] = field(default_factory=dict)  # how the caller has set torch's
    without: tuple[str, ...] = ()  # the parts of torch that the caller does without
    first: int = 0  # the first process of this host,
    host: str | None = None  # its name, where there are several hosts,
    store: tuple[str, int] | None = None  # and where the processes of all of them meet


@dataclass
class LaunchedProcess:
    """What a launched function gets: who it is among the processes, and how it reaches the others."""

    index: int
    processes: int
    ranks: int
    threads: int
    caller: ToCaller
    board: Board
    shared: dict[str, Tensor] | None
    meeting: int  # the descriptor that the ranks meet by (rendezvous.py)
    port: int | None
    store: tuple[str, int] | None = None  # where the processes of several hosts meet


def rank_process(index: int, link: int, fds: Mapping[str, int]) -> None:
    """The life of one process of a launch, from the fork to its result (called by the keeper)."""
    caller = ToCaller(link)
    board: Board | None = None
    try:
        its: Surroundings = unpack(fds["surroundings"])
        index += its.first
        board = Board(its.processes, fds["board"], own=range(its.first, its.processes), host=its.host)
        board.row(index)[PID] = os.getpid()
        answer_with_stacks(fds["stacks"])
        _enter(its, index, index - its.first)
        shared = attach_tensors(fds["shared"], its.slots) if its.slots is not None else None
        body = unpack(fds["body"])
        close_quietly(fds["surroundings"], fds["body"], fds["shared"])
        meeting, port = fds["meeting"], its.port
        result = body(
            LaunchedProcess(
                index, its.processes, its.ranks, its.threads, caller, board, shared, meeting, port, its.store
            )
        )
        caller.tell("done", result)
    except BaseException as problem:
        failure = describe(problem, index, board)
        with contextlib.suppress(OSError):
            caller.tell("failed", failure)
        raise SystemExit(1) from None


def _enter(its: Surroundings, index: int, here: int) -> None:
    """Take over the caller's surroundings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(its.environment)
    os.environ.update(
        RANK=str(index), LOCAL_RANK=str(here), WORLD_SIZE=str(its.processes), OMP_NUM_THREADS=str(its.threads)
    )
    with contextlib.suppress(OSError):
        os.chdir(its.folder)
    sys.path[:] = its.path
    torch.set_num_threads(its.threads)
    set_arithmetic(its.arithmetic)
    torch_internals.leave_out(its.without)
    if its.keep_memory:
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
    step, phase = (beat.step, beat.phase) if beat else (None, None)
    return RankFailed(
        f"{who(index, ranks, processes, board.host if board else None)} failed in {where(step, phase)}: {name}: {text}",
        rank=index,
        step=step,
        phase=phase,
        kind="consequence" if _from_another(problem) else "raised",
        traceback="".join(traceback.format_exception(problem)),
    )


def _from_another(problem: BaseException) -> bool:
    """Whether a rank failed only because another process is gone."""
    if isinstance(problem, PeerMissing | ConnectionError):
        return True
    return isinstance(problem, RuntimeError) and any(words in str(problem).lower() for words in _PEER_IS_GONE)
