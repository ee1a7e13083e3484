"""An agent: the process of a host that starts its ranks as `local` would, and passes on what they say.

    caller ───────── line ─────────> agent ── launch() ──> this host's ranks
       <── heartbeats, figures, questions, results, failures ──┘

It serves launch after launch until its line ends, and everything it started ends with it. What it says:

    idle                        ready for a launch
    rank (index, kind, content) a process of a launch said something; `done` with its result
    failed (failure)            the launch has failed here
    ended (stacks)              it was ended because the caller said so
    beats [...]                 a few times a second: where its processes are
    store (port)                where the processes of several hosts can meet
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch.distributed as dist

from ...errors import ManyhandsError, RankFailed
from ...model import torch_internals
from ...record.cores import available_cores
from ..health.heartbeats import Board
from ..health.stacks import is_stopped
from ..health.stalls import processor_seconds
from ..launch.arithmetic import set_arithmetic
from ..launch.fork_server import warm_up
from ..launch.processes import Part, launch
from ..launch.rank_process import describe
from ..launch.rendezvous import keep_store
from ..shared_memory import close_quietly
from .interfaces import interface_of
from .orders import LaunchOrders
from .versions import versions

BEAT_SECONDS = 0.25


class AgentLine(Protocol):
    """An agent's end of its line to the caller."""

    def send(self, kind: str, content: Any = None) -> None: ...

    def receive(self) -> tuple[str, Any]:
        """The next word; waits for it. EOFError when the caller has gone."""

    def open(self, carried: Any) -> int:
        """The file that the caller has carried here."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class ProcessBeat:
    """Where one process of a launch is, in terms that mean the same on another host."""

    index: int
    cells: bytes  # its row of the board
    seconds_ago: float
    used: float  # processor seconds
    stopped: bool


class Agent:
    def __init__(self, line: AgentLine, host: str):
        self.line, self.host = line, host
        self._answers: queue.Queue[Any] = queue.Queue()  # for the launch that runs now
        self._orders: queue.Queue[LaunchOrders | None] = queue.Queue()
        self._ended = threading.Event()  # the caller wants no more of the launch that runs,
        self._with_stacks = False  # or only where its processes are
        self._store: dist.TCPStore | None = None

    def live(self, place: int) -> None:
        """Until the line ends."""
        warm_up()
        threading.Thread(target=self._listen, name="manyhands-agent", daemon=True).start()
        hello = {"place": place, "host": self.host, "cores": available_cores(), "versions": versions()}
        self.line.send("hello", hello)
        while (orders := self._orders.get()) is not None:
            self._run(orders)
            self._say("idle")

    def _listen(self) -> None:
        try:
            while True:
                kind, content = self.line.receive()
                if kind == "launch":
                    self._ended.clear()
                    self._answers = queue.Queue()
                    self._orders.put(content)
                elif kind == "end":
                    self._with_stacks = bool(content)
                    self._ended.set()
                elif kind == "store":
                    self._store = keep_store()
                    self._say("store", self._store.port)
                elif kind == "answer":
                    self._answers.put(content)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.line.close()
        self._ended.set()
        self._orders.put(None)

    def _say(self, kind: str, content: Any = None) -> None:
        try:
            self.line.send(kind, content)
        except (OSError, EOFError):
            self._ended.set()  # `_listen` finds the end of the line too

    # ------------------------------------------------------------ one launch

    def _run(self, orders: LaunchOrders) -> None:
        body = -1
        try:
            body = self.line.open(orders.body)
            results = self._launch(body, orders)
        except RankFailed as failure:
            self._say(*(("ended", failure.traceback) if self._ended.is_set() else ("failed", failure)))
        except ManyhandsError as refusal:
            self._say("failed", refusal)
        except Exception as problem:  # before any rank was there
            self._say("failed", describe(problem, orders.first, None))
        else:
            for index, result in enumerate(results, start=orders.first):
                self._say("rank", (index, "done", result))
        finally:
            close_quietly(body)

    def _launch(self, body: int, orders: LaunchOrders) -> list[Any]:
        environment = self._enter(orders)
        part, self._beaten = None, 0.0
        if orders.store is not None:
            part = Part(orders.first, orders.of, orders.ranks, self.host, orders.store)
        return launch(
            body,
            orders.processes,
            ranks=orders.ranks,
            part=part,
            threads=orders.threads,
            environment=environment,
            shared=orders.shared,
            preload=orders.preload,
            on_tell=lambda index, kind, content: self._say("rank", (index, kind, content)),
            on_ask=partial(self._ask, orders.first),
            watch=self._look,
        )

    def _enter(self, orders: LaunchOrders) -> dict[str, str]:
        """Stand where the caller stands, as far as this host has it; returns what ranks have in their environment."""
        if os.path.isdir(orders.folder):
            os.chdir(orders.folder)
        sys.path += [folder for folder in orders.path if folder not in sys.path]
        set_arithmetic(dict(orders.arithmetic or {}))
        torch_internals.leave_out(orders.without)
        environment = {**(orders.environment or {}), **os.environ, "MANYHANDS_HOST": self.host}
        interface = interface_of(orders.address)
        if orders.store is not None and interface is not None:
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        return environment

    def _ask(self, first: int, kind: str, content: Any) -> Any:
        """A callback of the user's runs in the caller's process."""
        self._say("rank", (first, "ask", (kind, content)))
        while not self._ended.is_set():
            with contextlib.suppress(queue.Empty):
                return self._answers.get(timeout=BEAT_SECONDS)
        return None

    def _look(self, board: Board) -> RankFailed | None:
        """Called a few times a second: say where the ranks are, and end them where the caller says so."""
        if self._ended.is_set():
            return RankFailed("ended by the caller", kind="consequence", traceback=None if self._with_stacks else "-")
        now = time.monotonic()
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            self._say("beats", [_beat(board, index) for index in board.own])
        return None


def _beat(board: Board, index: int) -> ProcessBeat:
    beat, pid = board.beat(index), board.pid(index)
    cells = bytes(board.row(index).cast("B"))
    return ProcessBeat(index, cells, beat.seconds_ago, processor_seconds(pid), is_stopped(pid))
