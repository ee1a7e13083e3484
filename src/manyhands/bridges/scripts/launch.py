"""The ranks of a script, from the caller's side: started as torchrun would start them, watched, and all ended.

Each rank has a session of its own, so that Ctrl-C reaches the caller alone, which passes it on once; whatever the script
has started itself (workers of a DataLoader) is in that session and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...record.clock import BEAT_PHASE
from ...record.cores import available_cores
from .board import ENDED, Board

LOOK_SECONDS = 0.1  # between two looks at the ranks
GRACE_SECONDS = 2.0  # for the other ranks after one has failed: they may have something to say themselves
TERM_SECONDS = 2.0  # after they were told to end
STOP_SECONDS = 10.0  # for a script that saves its work after Ctrl-C


class Ranks:
    """The processes of one start. `torchrun`: with the environment that torchrun would give them."""

    def __init__(self, command: Sequence[str], ranks: int, torchrun: bool, stdout: int | None = None):
        self.ranks = ranks
        self.board = Board(ranks)
        self.codes: list[int | None] = [None] * ranks
        self.fell_at_exit: dict[int, int] = {}  # rank -> signal, where it died when its script had ended well
        self.ended = False  # by the caller: exit codes after that say nothing
        self._files = [tempfile.TemporaryFile() for _ in range(ranks)]  # noqa: SIM115 (closed in end)
        self._processes: list[subprocess.Popen[bytes]] = []
        shared = torchrun_environment(ranks) if torchrun else {}
        try:
            for rank, file in enumerate(self._files):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if torchrun else {}
                start = [sys.executable, *_interpreter_options(), "-m", __package__]
                words = [str(self.board.fd), str(file.fileno()), str(rank), str(ranks)]
                process = subprocess.Popen(
                    [*start, *words, *command],
                    env={**os.environ, **shared, **own},
                    pass_fds=(self.board.fd, file.fileno()),
                    start_new_session=True,
                    stdout=stdout,
                )
                self._processes.append(process)
        except BaseException:
            self.end()
            raise

    def wait(self, look: Callable[[Board], None]) -> None:
        """Until all have ended, or one has failed and the others were given a moment."""
        give_up = float("inf")
        while None in self._poll():
            look(self.board)
            if any(self.codes) and give_up == float("inf"):
                give_up = time.monotonic() + GRACE_SECONDS
            if time.monotonic() > give_up:
                return
            time.sleep(LOOK_SECONDS)

    def interrupt(self) -> None:
        """Pass Ctrl-C on, and wait while the script ends in its own way; a second Ctrl-C ends the patience."""
        with contextlib.suppress(KeyboardInterrupt):
            self._signal(signal.SIGINT)
            limit = time.monotonic() + STOP_SECONDS
            while None in self._poll() and time.monotonic() < limit:
                time.sleep(LOOK_SECONDS)

    def end(self) -> list[dict[str, Any]]:
        """Leave no process; returns what each rank has left of its figures."""
        if None in self._poll():
            self.ended = True
            self._signal(signal.SIGTERM)
            limit = time.monotonic() + TERM_SECONDS
            while any(process.poll() is None for process in self._processes) and time.monotonic() < limit:
                time.sleep(LOOK_SECONDS)
        self._signal(signal.SIGKILL, everyone=True)
        for process in self._processes:
            process.wait()
        return [_read(file) for file in self._files]

    def _poll(self) -> list[int | None]:
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is not None and code < 0 and self.board.row(rank)[BEAT_PHASE] == ENDED and not self.ended:
                self.fell_at_exit[rank], code = -code, 0  # the script had ended: torch's threads may abort after that
            self.codes[rank] = code
        return self.codes

    def _signal(self, number: int, everyone: bool = False) -> None:
        """To the ranks that run; `everyone`: to all that they have started, too."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if everyone:
                    os.killpg(process.pid, number)
                elif process.poll() is None:
                    process.send_signal(number)


def _read(file: Any) -> dict[str, Any]:
    """The figures of one rank; none of a rank that was killed."""
    with file:
        file.seek(0)
        try:
            figures = json.load(file)
        except ValueError:
            return {}
    return figures if isinstance(figures, dict) else {}


def torchrun_environment(ranks: int) -> dict[str, str]:
    """What torchrun tells all ranks of one host."""
    told = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1"}
    told["MASTER_PORT"] = _free_port()
    if "OMP_NUM_THREADS" not in os.environ:
        told["OMP_NUM_THREADS"] = max(1, available_cores() // ranks)
    return {name: str(value) for name, value in told.items()}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _interpreter_options() -> list[str]:
    """Those of this interpreter that a script would notice: -W, -X, -O and the like."""
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
