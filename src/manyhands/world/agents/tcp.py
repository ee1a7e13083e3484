"""Agents that an engine starts by a command on each host, and that connect to the caller over TCP.

A folder that all hosts see carries the key, the addresses of the caller and what is launched:

    folder/key            32 random bytes (the folder is the user's alone)
    folder/caller.json    where the caller listens
    folder/body-1         a launch's function and data, checked by the SHA-256 that comes over the line
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import selectors
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import ManyhandsError, RankFailed
from ..engines.cluster import Agents, Place
from ..launch.messages import ToRank
from ..shared_memory import map_file
from .handshake import SIZE, greet_agent
from .interfaces import LOOPBACK, own_addresses
from .versions import same_versions

PING_SECONDS = 1.0
LOOK_SECONDS = 0.2
ANSWER_SECONDS = 120.0  # for an agent to import torch and say hello, once its host is there


def agent_command(folder: Path) -> list[str]:
    """What an engine runs on each host; the agent knows its place from `MANYHANDS_PLACE` or `SLURM_NODEID`."""
    source = str(Path(__file__).resolve().parents[3])
    code = f"import sys; sys.path.append({source!r}); from manyhands.world.agents.process import main; main({str(folder)!r})"
    return [sys.executable, "-c", code]


class TcpAgents(Agents):
    """`begin` has the engine start the command on every host; `check` is called now and then until all have answered:
    it raises where they never will, and says what is waited for."""

    def __init__(
        self,
        places: Sequence[Place],
        folder: Path,
        begin: Callable[[list[str]], None],
        check: Callable[[], None],
        end: Callable[[], None],
    ):
        self.places, self.folder, self._end = list(places), folder, end
        self._lines: dict[int, ToRank] = {}
        self._peers: dict[int, tuple[str, str]] = {}  # of each line: the other end's address, and ours
        self._selector = selectors.DefaultSelector()
        self._sending, self._over, self._bodies = threading.Lock(), threading.Event(), 0
        self.cores = [0] * len(self.places)
        self._listener = socket.create_server(("0.0.0.0", 0), backlog=len(self.places) + 8)
        try:
            self._prepare()
            begin(agent_command(folder))
            self._meet(check)
        except BaseException:
            self.close()
            raise
        self.addresses = self._addresses()
        threading.Thread(target=self._ping, name="manyhands-ping", daemon=True).start()

    # ------------------------------------------------------------ meeting

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True)
        key = self.folder / "key"
        key.touch(mode=0o600)
        self._key = secrets.token_bytes(SIZE)
        key.write_bytes(self._key)
        where = {"addresses": own_addresses(), "port": self._listener.getsockname()[1]}
        (self.folder / "caller.json").write_text(json.dumps(where))

    def _meet(self, check: Callable[[], None]) -> None:
        """Until every agent has said hello. Who does not know the key is sent away."""
        self._listener.settimeout(LOOK_SECONDS)
        first: float | None = None
        while len(self._lines) < len(self.places):
            check()
            if first is not None and time.monotonic() - first > ANSWER_SECONDS:
                missing = [place.host for index, place in enumerate(self.places) if index not in self._lines]
                raise RankFailed(
                    f"no word from the agent on {', '.join(missing)} for {ANSWER_SECONDS:.0f} s after the first had come",
                    host=missing[0],
                )
            with contextlib.suppress(TimeoutError):
                line, peer = self._listener.accept()
                if self._welcome(line, peer[0]):
                    first = first or time.monotonic()

    def _welcome(self, line: socket.socket, peer: str) -> bool:
        try:
            greet_agent(line, self._key)
        except OSError:
            line.close()
            return False
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours, end = line.getsockname()[0], ToRank(line)
        kind, hello = self._first_word(line, end)
        if kind != "hello":
            raise RankFailed(f"an agent could not start: {hello}")
        same_versions(hello["host"], hello["versions"])
        index = hello["place"]
        self._lines[index], self._peers[index] = end, (peer, ours)
        self.places[index] = Place(hello["host"], self.places[index].processes)
        self.cores[index] = hello["cores"]
        self._selector.register(end, selectors.EVENT_READ, index)
        return True

    def _first_word(self, line: socket.socket, end: ToRank) -> tuple[str, Any]:
        until = time.monotonic() + ANSWER_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(line, selectors.EVENT_READ)
            while time.monotonic() < until:
                if selector.select(LOOK_SECONDS):
                    try:
                        words = end.receive()
                    except EOFError:
                        break
                    if words:
                        return words[0]
        return "nothing", "it has connected and then said nothing"

    def _addresses(self) -> list[str]:
        """Where hosts reach each other: as the caller sees them. One on the caller's own machine, which comes over
        loopback, is for the others where they reach the caller."""
        ours = {ours for peer, ours in self._peers.values() if not peer.startswith("127.")}
        here = min(ours, default=LOOPBACK)
        peers = [self._peers[index][0] for index in range(len(self.places))]
        return [here if peer.startswith("127.") else peer for peer in peers]

    # ------------------------------------------------------------ talking

    def heard(self, seconds: float) -> list[tuple[int, str, Any]]:
        said: list[tuple[int, str, Any]] = []
        for key, events in self._selector.select(timeout=seconds):
            index, line = key.data, self._lines[key.data]
            if events & selectors.EVENT_WRITE:
                self._flush(index)
            if not events & selectors.EVENT_READ:
                continue
            try:
                said += [(index, kind, content) for kind, content in line.receive()]
            except EOFError:
                self._selector.unregister(line)
                with self._sending:
                    self._lines.pop(index).close()
                said.append((index, "gone", None))
        return said

    def send(self, agent: int, kind: str, content: Any = None) -> None:
        with self._sending:
            if agent in self._lines:
                self._lines[agent].send((kind, content))
        self._flush(agent)

    def _flush(self, index: int) -> None:
        """Send what is left, and ask to be woken for the rest."""
        with self._sending:
            line = self._lines.get(index)
            if line is not None:
                line.flush()
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.has_unsent else 0)
                self._selector.modify(line, events, index)

    def _ping(self) -> None:
        """Agents end what they run where the caller is not heard of: it may be cut off and unable to end anything."""
        while not self._over.wait(PING_SECONDS):
            for agent in list(self._lines):
                with self._sending:
                    if agent in self._lines and not self._lines[agent].has_unsent:
                        self._lines[agent].send(("ping", None))

    def carry(self, file: int) -> tuple[str, str]:
        self._bodies += 1
        content = map_file(file, shared=True)
        name = f"body-{self._bodies}"
        with open(os.open(self.folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as target:
            target.write(content)
            target.flush()
            os.fsync(target.fileno())
        with contextlib.suppress(OSError):
            (self.folder / f"body-{self._bodies - 1}").unlink()  # all agents have opened it
        return name, hashlib.sha256(content).hexdigest()

    def close(self) -> None:
        self._over.set()
        with self._sending:
            for line in self._lines.values():
                line.close()
            self._lines.clear()
        self._selector.close()
        self._listener.close()
        with contextlib.suppress(ManyhandsError, OSError):
            self._end()
        shutil.rmtree(self.folder, ignore_errors=True)
