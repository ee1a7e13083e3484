"""One of torchrun's ranks: this process is a rank itself, and torchrun starts all of them again after a failure."""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psutil
import torch
import torch.distributed as dist

from ...errors import BadInput, PeerMissing, RankFailed, Refused
from ...record.cores import available_cores
from ..health.heartbeats import DONE, Board, where, who
from ..health.torchrun_hosts import HostWatch
from ..health.torchrun_stalls import TorchrunWatch
from ..launch.rank_process import describe
from ..rank import COLLECTIVE_SECONDS, Rank, connect, disconnect, share_over_store
from ..shared_memory import open_of_process
from ..torchrun_variables import started_by_torchrun, torchrun_world
from .engine import Ask, Body, Engine, Forgive, Ready, Shared, T, Tell, World
from .torchrun_meeting import MEET_SECONDS, Gathering, Meeting, gathered

EXPLAIN_SECONDS = 3.0  # one that has failed gives the others this long to say why
BORN = time.time()  # before anything that this process writes, after all that was written by one whose place it takes


class Torchrun(Engine):
    """A fit that is a part of something may need fewer processes than torchrun has started; the others wait for its end."""

    may_restart = False
    processes: int

    def __init__(self) -> None:
        self.index, self.processes, self.hosts = torchrun_world()
        self.leads, self._part = self.index == 0, False
        self.restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.began, self.born = psutil.Process(os.getppid()).create_time(), BORN
        self._gathering: Gathering | None = None
        self._said: Meeting | None = None  # what the processes say of this fit
        self._ready = False
        self._open = ExitStack()

    def check(self, processes: int, name: str, survives: bool) -> None:
        if survives:
            raise BadInput("torchrun ends all ranks when one dies, so on_death=continue fails; see its --max-restarts")
        if processes > self.processes or (processes < self.processes and not self._part):
            raise Refused(
                f"torchrun started {self.processes} processes but {name} needs {processes}; "
                f"use --ranks {self.processes} or --nproc-per-node {processes}"
            )
        if self._gathering is not None:
            self.hosts = len(self._gathering.by_host(processes))

    def threads(self, ranks: int) -> int:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", self.processes))
        first = self.index - int(os.environ.get("LOCAL_RANK", self.index))
        return max(1, available_cores() // max(1, min(local, ranks - first)))

    # ------------------------------------------------------------ all processes, whether a fit needs them or not

    def together(self, processes: int, fit: Callable[[], T], outline: Callable[[T], T], part: bool) -> T:
        """`fit()` on the first so many processes; all get its one end: rank 0's record (in outline) or what ended it."""
        if self.processes == 1:
            return fit()
        result: T | None = None
        problem: BadInput | RankFailed | None = None
        self._part, self._gathering, self._said, self._ready = part, None, None, False
        with self._open:
            if part:
                self.meet()
            try:
                if self.index < processes:
                    result = fit()
            except (BadInput, RankFailed) as found:
                if self._said is None:  # refused before anyone was met, as all of them do
                    raise
                problem = found
            return self._one_end(min(processes, self.processes), result, problem, outline)

    def agreed(self, make: Callable[[], T]) -> T:
        if self.processes == 1:
            return make()
        here = gathered()
        self.began = here.began
        return _accepted(here.agree(_made(make) if self.leads else None), self.leads)

    def meet(self) -> Gathering:
        """From here on this process is among the others, and hosts watch each other until the fit ends."""
        if self._gathering is None:
            here = self._gathering = gathered()
            self._said, self.began = here.next(), here.began
            blocks = here.by_host(self.processes)
            self._open.enter_context(HostWatch(here.beats, here.hosts(), blocks, self.index, self._lost))
        return self._gathering

    def _one_end(
        self, processes: int, result: T | None, problem: BadInput | RankFailed | None, outline: Callable[[T], T]
    ) -> T:
        said, members = self.said, range(processes)
        limit = EXPLAIN_SECONDS if problem else MEET_SECONDS if self.index in members else None
        ends: dict[int, Any] = {}
        try:
            if self.index in members:
                if not self._ready:
                    said.say("ready", _alone(problem))
                said.say("end", (_alone(problem), outline(result) if result is not None and self.leads else None))
            for index in members:
                ends[index] = said.heard("end", index, limit)
        except (KeyboardInterrupt, PeerMissing):
            if problem is None:
                raise
            problem = self._of_the_silent(problem, processes, len(ends))
            problem.final = True  # torchrun ends all
        self._open.close()  # hosts no longer watch each other: the store may go with rank 0
        self.meet().part(said)
        known = {index: end[0] for index, end in ends.items()} | ({self.index: problem} if problem else {})
        cause = _cause({index: found for index, found in known.items() if found is not None})
        if cause is None:
            return result if result is not None and self.leads else ends[0][1]
        if problem is None or str(cause) != str(problem):
            if problem is not None:
                cause.run, cause.final = problem.run, problem.final
            problem = cause
        problem.told = not self.leads and 0 in ends
        raise problem

    def _of_the_silent(self, problem: BadInput | RankFailed, processes: int, index: int) -> BadInput | RankFailed:
        """What this process met because another is gone is told of that one: it does not say why it ended."""
        if getattr(problem, "kind", None) != "consequence" or index == self.index:
            return problem
        host = self.meet().host_of(index) if self.hosts > 1 else None
        assert isinstance(problem, RankFailed)
        name, spot = who(index, processes, processes, host), where(problem.step, problem.phase)
        found = RankFailed(f"{name} is gone, as rank {self.index} saw in {spot}", rank=index, kind="died", host=host)
        found.step, found.phase, found.run = problem.step, problem.phase, problem.run
        return found

    def _lost(self, text: str) -> None:
        """This process is stuck in a collective with the lost host, so it can only be ended from another thread."""
        print(f"{text}; this rank ends, and torchrun ends or restarts the others", file=sys.stderr, flush=True)
        with suppress(Exception):
            self.lost(text)
        os._exit(1)

    @property
    def said(self) -> Meeting:
        assert self._said is not None
        return self._said

    # ------------------------------------------------------------ the processes of a fit

    @contextmanager
    def joined(self, world: World, tell: Tell, ask: Ask) -> Iterator[None]:
        threads = torch.get_num_threads()
        torch.set_num_threads(world.threads)
        store = self._all_ready(world) if self.processes > 1 else None
        rank = self.rank = self._rank(world, tell, ask)
        own_group = not dist.is_initialized()
        try:
            if own_group:
                connect(rank, world.transport, store, COLLECTIVE_SECONDS)
            with self._watched(rank, world.stall_seconds):
                yield
        except BadInput:
            raise
        except Exception as problem:
            if (described := describe(problem, self.index, rank.board)) is problem:
                raise
            raise described from problem
        finally:
            if own_group:
                disconnect(rank)
            torch.set_num_threads(threads)

    def _all_ready(self, world: World) -> dist.Store:
        """When nobody refuses; the place where the ranks of this fit find each other."""
        self.meet()
        self.said.say("ready", None)
        self._ready = True
        for refusal in self.said.all_heard("ready", range(world.processes)):
            if refusal is not None:
                raise refusal
        return dist.PrefixStore("group", self.said.store)

    def _rank(self, world: World, tell: Tell, ask: Ask) -> Rank:
        local = int(os.environ.get("LOCAL_RANK", self.index))
        device = world.devices[local if self.hosts > 1 else self.index]
        if device.type == "cuda":
            torch.cuda.set_device(device)
        met = self._gathering
        by_host = met.by_host(world.processes) if met is not None else [[0]]
        here = next(members for members in by_host if self.index in members)
        board = self._board(world, here, met.host_of(self.index) if met is not None and len(by_host) > 1 else None)
        rank = Rank(self.index, world.processes, world.ranks, device, board, world.threads, tell, ask, None, by_host)
        rank.devices = world.devices
        return rank

    def _board(self, world: World, here: list[int], host: str | None) -> Board:
        """One for all ranks of this host, which have no common parent: its first makes it."""
        own = range(here[0], here[-1] + 1)
        if self.index == here[0]:
            board = Board(world.processes, None, world.ranks, own, host)
            for other in set(range(world.processes)) - set(own):
                board.row(other)[DONE] = 1  # its own host watches it
            if len(here) > 1:
                self.said.say("board", (os.getpid(), board.fd))
            return board
        pid, fd = self.said.heard("board", here[0])
        return Board(world.processes, open_of_process(pid, fd), world.ranks, own, host)

    @contextmanager
    def _watched(self, rank: Rank, stall_seconds: float | None) -> Iterator[None]:
        if self.processes == 1 or rank.processes == 1:
            yield
            return
        rank.barrier()  # all of a host hold its board
        with TorchrunWatch(rank, stall_seconds, self.said):
            yield

    def once(self, make: Callable[[], T]) -> T:
        """Made by rank 0 alone, for all: only its host need have the files, and what is measured is measured once."""
        return _accepted(self.rank.agree(_made(make) if self.leads else None), self.leads)

    def run(self, body: Body, shared: Shared, ready: Ready, forgive: Forgive, time_limit: float | None) -> Any:
        if time_limit is not None:
            raise BadInput("time_limit (--time-limit) cannot be kept under torchrun, which ends all or nothing")
        if shared is not None:
            self.rank.shared = share_over_store(self.rank, shared)
        self.once(ready)
        return body(self.rank)


def leads() -> bool:
    """Whether this process speaks for all: among torchrun's, the first."""
    return not started_by_torchrun() or torchrun_world()[0] == 0


def _made(make: Callable[[], T]) -> T | BadInput:
    try:
        return make()
    except BadInput as refusal:
        return refusal


def _accepted(found: T | BadInput, leads: bool) -> T:
    """What rank 0 has made; what it refused, all refuse."""
    if isinstance(found, BadInput):
        found.told = not leads
        raise found
    return found


def _alone(problem: BadInput | RankFailed | None) -> BadInput | RankFailed | None:
    """As others get it: without the record."""
    if problem is None:
        return None
    light = copy.copy(problem)
    light.run = None
    return light


def _cause(problems: dict[int, BadInput | RankFailed]) -> BadInput | RankFailed | None:
    """What the others followed from."""
    follows = {index: getattr(problem, "kind", None) == "consequence" for index, problem in problems.items()}
    return problems[min(problems, key=lambda index: (follows[index], index))] if problems else None
