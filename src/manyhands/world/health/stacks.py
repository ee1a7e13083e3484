"""Where all processes of a launch are in their code: each writes its Python stacks when it is asked by a signal."""

from __future__ import annotations

import faulthandler
import os
import signal
import time

import psutil

from .heartbeats import Board, who


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP, a debugger)."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def stacks(board: Board, fd: int, seconds: float = 1.0) -> str:
    """The Python stacks of all processes; each writes its own into `fd` when it gets SIGUSR1."""
    for rank in board.own:
        beat, pid = board.beat(rank), board.pid(rank)
        title = who(rank, board.ranks, board.processes, board.host)
        os.write(fd, f"{title}, process {pid}, in {beat.phase} of step {beat.step}:\n".encode())
        if beat.lost or beat.done or not pid:
            os.write(fd, b"  has ended\n")
        elif is_stopped(pid):
            os.write(fd, b"  stopped by a signal: it cannot say where it is\n")
        else:
            _ask_for_stack(pid, fd, seconds)
        os.write(fd, b"\n")
    return os.pread(fd, 1 << 20, 0).decode(errors="replace")


def _ask_for_stack(pid: int, fd: int, seconds: float) -> None:
    before = size = os.fstat(fd).st_size
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        os.write(fd, b"  has ended\n")
        return
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)
        grown = os.fstat(fd).st_size
        if grown == size > before:
            return
        size = grown
    if size == before:
        os.write(fd, b"  did not answer\n")


def answer_with_stacks(fd: int) -> None:
    """A rank's side: write all stacks to `fd` on SIGUSR1, also while it is blocked in native code."""
    faulthandler.register(signal.SIGUSR1, file=fd, all_threads=True, chain=False)
