"""The caller's line to the keeper of a launch: the process that forks its ranks and reports how each one ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import wait

MOMENT = 5.0  # seconds that the report of a death may take, on a busy machine
END_LIMIT = 5.0  # seconds the keeper may take to kill everything (it takes milliseconds)


class Keeper:
    """Knows the processes of a launch and the exit codes of those that have ended."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair()
        self._gone = False
        self._pid: int | None = None
        self._rank_pids: list[int] = []
        self._codes: dict[int, int] = {}
        self._rest = b""  # of a report that has not come whole

    def fileno(self) -> int:
        return self._socket.fileno()

    def hear(self) -> bool:
        """Take in what it has reported; False once it has hung up."""
        try:
            heard = b"" if self._gone else self._socket.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True  # what was announced has been read meanwhile, by one who asked how a rank died
        self._gone = not heard
        *lines, self._rest = (self._rest + heard).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self._rank_pids = message.get("pids", self._rank_pids)
            self._pid = message.get("keeper", self._pid)
            if "ended" in message:
                self._codes[message["ended"]] = message["code"]
        return bool(heard)

    def code_of(self, index: int, meanwhile: Callable[[], None] | None = None) -> int | None:
        """The exit code of a rank that is ending, waited for a moment; None where no report comes."""
        self.wake()
        until = time.monotonic() + MOMENT
        while index not in self._codes and not self._gone and time.monotonic() < until:
            if meanwhile is not None:
                meanwhile()
            if wait([self._socket], timeout=0.1):
                self.hear()
        return self._codes.get(index)

    def end(self) -> None:
        """Hang up: it kills what still runs, and we wait until it has. If it does not, we do."""
        self.theirs.close()  # already closed, unless no process was ever started
        try:
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(END_LIMIT)
            self.wake()
            while self._socket.recv(65536):
                continue
        except TimeoutError:
            self._kill()
        except OSError:
            pass
        self._socket.close()

    def wake(self) -> None:
        """It may have been stopped (Ctrl-Z, SIGSTOP). While it holds its end of the socket it is alive."""
        if self._pid is not None and not self._gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)

    def _kill(self) -> None:
        """The ranks first, with their loader workers: as long as their keeper has not reaped them, the numbers are theirs."""
        for kill, pid in [*((os.killpg, pid) for pid in self._rank_pids), (os.kill, self._pid)]:
            if pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
