"""The fork server: a clean process that has torch imported and forks ranks in milliseconds.

    caller ── request socket ──> server          (one per program, imports torch once)
       │                            └─ fork ──> keeper      (one per launch)
       └── control socket ──────────────────────┤
                                                ├─ fork ──> rank 0   (own process group)
                                                └─ fork ──> rank 1

A program that uses torch has threads and cannot be forked safely; spawning costs an import of torch per
rank and runs the caller's script again. The server never computes, so forking it is safe, and it never
imports the caller's `__main__`: scripts need no guard.

The keeper is the parent of the ranks. It reports how each one ended over the control socket, and when that
socket closes, because the caller is done or dead, it kills what is left. Ranks ask the kernel to be killed
with their keeper, keepers with the server, and the server asks to be woken when the caller ends. So nothing outlives the
caller, whatever kills whom, and even if the server or a keeper had been stopped (Ctrl-Z, SIGSTOP).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable

# The order in which descriptors travel in a request; the links of the ranks follow.
DESCRIPTORS = ("meeting", "control", "surroundings", "stderr", "body", "board", "stacks", "shared")
FOR_RANKS = tuple(name for name in DESCRIPTORS if name not in ("control", "stderr"))
LAST_SECONDS = 1  # after the caller has gone
RankProcess = Callable[[int, int, dict[str, int]], None]
Start = Callable[[dict[str, int], list[int], int], dict[int, int]]  # descriptors, links, control -> ranks by pid


def live(requests: int) -> None:
    """The life of the server's process, to its end.

    Without the interpreter's clean-up: what is frozen here would be reported as leaked in the user's terminal (by
    triton, which comes with torch).
    """
    leave(lambda: serve(socket.socket(fileno=requests)))


def serve(requests: socket.socket) -> None:
    """Fork a keeper for every request until the caller goes away.

    One without descriptors names modules to import, and may ask for a rank in waiting on a device.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    signal.signal(signal.SIGCHLD, _reap)  # not ignored: the kernel would forget how much time the ranks have used
    when_parent_ends(signal.SIGCONT)
    gc.disable()  # nothing that an import makes is garbage, and looking for it takes a tenth of the time
    from ...model.without_compiler import step_without_compiler
    from .rank_process import rank_process  # imports torch: the point of this process

    step_without_compiler()
    _import(["manyhands.world.shm"])  # as ranks on CPU do when they connect
    gc.collect()
    gc.freeze()  # forked pages stay shared
    gc.enable()
    from .rank_in_waiting import WaitingRoom

    server, room = os.getpid(), WaitingRoom(rank_process, requests)
    while True:
        room.empty_after_long()
        message, fds, _, _ = socket.recv_fds(requests, 65536, 1024)
        if not message:
            room.empty()
            _wait_for_keepers()
            return
        asked = [json.loads(line) for line in message.splitlines()]  # those without descriptors may come with the next
        new = _import([name for one in asked for name in one["import"]])
        if not fds:
            room.prepare(next((one["wait"] for one in asked if one["wait"]), None), stale=new)
        elif not room.take(fds, fits=not new and not asked[-1]["afresh"]) and os.fork() == 0:
            when_parent_ends(signal.SIGKILL, server)
            requests.close()
            leave(lambda fds=fds: keep(fds, fork_ranks(rank_process)))  # type: ignore[misc]
        for fd in fds:
            os.close(fd)


def _wait_for_keepers() -> None:
    """Let them end their ranks in order; one that cannot, because it was stopped, dies with this process."""
    signal.alarm(LAST_SECONDS)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _reap(*_: object) -> None:
    """Keepers that have ended are not worth a word."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _import(modules: list[str]) -> bool:
    """Slow imports happen here once, before the fork, instead of in every rank of every launch; whether any was new."""
    new = [name for name in modules if name not in sys.modules]
    for name in new:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            gc.freeze()
    return bool(new)


def keep(fds: list[int], start: Start) -> None:
    """Have the ranks of one launch started, report their ends, and leave nothing when the caller has gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    named, links = dict(zip(DESCRIPTORS, fds, strict=False)), fds[len(DESCRIPTORS) :]
    control, stderr = socket.socket(fileno=named.pop("control")), named.pop("stderr")
    os.dup2(stderr, 1)  # what ranks print must not mix with the caller's standard output
    os.dup2(stderr, 2)
    os.close(stderr)
    pids = start(named, links, control.fileno())
    for fd in {*links, *named.values()}:
        os.close(fd)
    try:
        _report(control, {"keeper": os.getpid(), "pids": list(pids)})
        _watch(control, pids)
    finally:
        _kill(pids)
        control.close()  # now, for the caller waits for it: the kernel would first take this process's memory apart


def fork_ranks(rank_process: RankProcess) -> Start:
    """A rank for each link."""

    def start(named: dict[str, int], links: list[int], control: int) -> dict[int, int]:
        keeper, pids = os.getpid(), {}
        for index, link in enumerate(links):
            pid = os.fork()
            if pid == 0:
                os.close(control)
                for other in links:
                    if other != link:
                        os.close(other)
                when_parent_ends(signal.SIGKILL, keeper)
                os.setpgid(0, 0)
                leave(lambda index=index, link=link: rank_process(index, link, named))  # type: ignore[misc]
            pids[pid] = index
        return pids

    return start


def _watch(control: socket.socket, pids: dict[int, int]) -> None:
    """Report every end until the caller closes the control socket."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    living = dict(pids)
    while True:
        for pid in list(living):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                _kill_group(pid)  # its loader workers must not outlive it
                _report(control, {"ended": living.pop(pid), "code": os.waitstatus_to_exitcode(status)})
        for key, _ in selector.select(timeout=1.0):
            if key.fileobj is control:
                if _hung_up(control):
                    return
            else:
                os.read(wake_read, 4096)


def _hung_up(control: socket.socket) -> bool:
    try:
        return not control.recv(64)
    except ConnectionResetError:  # killed before it had read all that was told
        return True


def _kill(pids: dict[int, int]) -> None:
    for pid in pids:
        _kill_group(pid)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _report(control: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the caller is gone; _watch notices by itself
        control.sendall(json.dumps(message).encode() + b"\n")


def when_parent_ends(number: int, parent: int | None = None) -> None:
    """Ask the kernel for this signal when the parent ends, also if this process is stopped; leave if `parent` has ended."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def leave(body: Callable[[], None]) -> None:
    """Run the body of a process and end it without the interpreter's clean-up; in a forked one it belongs to the parent."""
    code = 1
    try:
        body()
        code = 0
    except SystemExit as leaving:  # a rank whose failure has been told
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
