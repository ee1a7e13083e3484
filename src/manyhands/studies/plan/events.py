"""Timelines of several processes, run against a clock: what each does when, and how long it waits.

    rank 0   work ------ meet ....|==|  work        . waiting for the last    = what the collective takes
    rank 1   work ----------- meet|==|  work

Cores are shared: where more processes work than their host has cores, each gets its share; and those that work at the same
time slow each other down by as much as was measured (`slowdown`: memory and caches have several masters). No two steps are
equally long (`luck`), so those that wait for each other wait for the unluckiest. Who waits for a message for long sleeps, and
wakes up late (`wake`).
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from ...record.run import PHASES
from ...strategies.timeline import (
    Act,
    Await,
    Idle,
    Launch,
    Meet,
    Receive,
    Release,
    Send,
    Settle,
    Spare,
    Take,
    Work,
)
from ...world.shm.engine import YIELD_SECONDS

TINY = 1e-12  # seconds that are none
MOST_EVENTS = 2_000_000


@dataclass(frozen=True)
class Outcome:
    """Seconds per step, and of every process the seconds per step that each phase took."""

    step_seconds: float
    phases: tuple[dict[str, float], ...]

    def mean(self, ranks: int) -> dict[str, float]:
        """Over the ranks; phases sum to the step: a process that is done early waits."""
        mean = {name: sum(found.get(name, 0.0) for found in self.phases[:ranks]) / ranks for name in PHASES}
        mean["wait"] += max(0.0, self.step_seconds - sum(mean.values()))
        return mean


@dataclass
class _Shelved:
    """Work for idle time."""

    phase: str
    left: float


@dataclass
class _Process:
    host: int
    acts: Iterator[Act]
    left: float = 0.0  # seconds of work still to do
    phase: str = ""
    spare: deque[_Shelved] = field(default_factory=deque)
    luck: float = 1.0  # in this step
    blocked_since: float | None = None
    settling: bool = False
    done: bool = False
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    marks: list[float] = field(default_factory=list)  # when each step ended


def run(
    timeline: Callable[[int, int], Iterator[Act]],
    hosts: Sequence[int],
    cores: float,
    slowdown: Callable[[int], float] = lambda busy: 1.0,
    steps: int = 6,
    warm: int = 2,
    luck: Callable[[int, int], float] = lambda process, step: 1.0,
    wake: float = 0.0,
) -> Outcome:
    """Run `timeline(process, step)` of every process (hosts[process] is where it is) for so many steps, the first left out.

    `luck(process, step)` is how many times as long as usual that process works in that step; `wake` how many seconds later one
    who sleeps has its message.
    """
    return _Simulation(timeline, hosts, cores, slowdown, steps, warm, luck, wake).run()


class _Simulation:
    def __init__(
        self,
        timeline: Callable[[int, int], Iterator[Act]],
        hosts: Sequence[int],
        cores: float,
        slowdown: Callable[[int], float],
        steps: int,
        warm: int,
        luck: Callable[[int, int], float],
        wake: float,
    ):
        self.luck, self.wake = luck, wake
        self.now, self.cores, self.slowdown, self.steps, self.warm = 0.0, cores, slowdown, steps, warm
        self.processes = [_Process(host, self._steps(timeline, index)) for index, host in enumerate(hosts)]
        self.arrived: dict[tuple[str, int], list[_Process]] = defaultdict(list)
        self.takes: dict[tuple[str, int], float] = defaultdict(float)
        self.ends: dict[tuple[str, int], float] = {}  # of launched collectives
        self.launched: dict[tuple[str, int], int] = defaultdict(int)
        self.messages: dict[str, deque[float]] = defaultdict(deque)  # when each arrives
        self.waiting: dict[str, deque[_Process]] = defaultdict(deque)
        self.awaiting: dict[tuple[str, int], list[_Process]] = defaultdict(list)
        self.holder: dict[str, _Process] = {}
        self.queue: dict[str, deque[_Process]] = defaultdict(deque)
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.number = count()

    def _steps(self, timeline: Callable[[int, int], Iterator[Act]], index: int) -> Iterator[Act]:
        for step in range(self.steps):
            self.processes[index].luck = self.luck(index, step)
            yield from timeline(index, step)
            self.processes[index].marks.append(self.now)
            if step == self.warm - 1:
                self.processes[index].spent.clear()

    def run(self) -> Outcome:
        for process in self.processes:
            self._go_on(process)
        for _ in range(MOST_EVENTS):
            if all(process.done for process in self.processes):
                return self._outcome()
            self._advance()
        raise ValueError("the timelines do not end")

    def _outcome(self) -> Outcome:
        made = self.steps - self.warm
        begin = max(process.marks[self.warm - 1] for process in self.processes) if self.warm else 0.0
        end = max(process.marks[-1] for process in self.processes)
        phases = tuple({name: spent / made for name, spent in one.spent.items()} for one in self.processes)
        return Outcome((end - begin) / made, phases)

    # ------------------------------------------------------------ the clock

    def _advance(self) -> None:
        busy: dict[int, list[_Process]] = defaultdict(list)
        for process in self.processes:
            if process.left > 0 or (process.blocked_since is not None and process.spare):
                busy[process.host].append(process)
        rates = {
            host: min(1.0, self.cores / len(at)) / self.slowdown(min(len(at), math.ceil(self.cores)))
            for host, at in busy.items()
        }
        until = self.heap[0][0] if self.heap else math.inf
        for host, at in busy.items():
            for process in at:
                left = process.left if process.left > 0 else process.spare[0].left
                until = min(until, self.now + left / rates[host])
        if until == math.inf:
            stuck = [index for index, process in enumerate(self.processes) if not process.done]
            raise ValueError(f"the timelines of processes {stuck} wait for each other forever")
        passed, self.now = until - self.now, until
        finished = []
        for host, at in busy.items():
            for process in at:
                if process.left > 0:
                    process.spent[process.phase] += passed
                    process.left -= passed * rates[host]
                    if process.left <= TINY:
                        process.left = 0.0
                        finished.append(process)
                else:
                    self._fill_in(process, passed, passed * rates[host])
        while self.heap and self.heap[0][0] <= self.now + TINY:
            heapq.heappop(self.heap)[2]()
        for process in finished:
            self._go_on(process)

    def _fill_in(self, process: _Process, passed: float, work: float) -> None:
        """Spare work while it waits: that time is no waiting."""
        assert process.blocked_since is not None
        first = process.spare[0]
        process.spent[first.phase] += passed
        process.blocked_since += passed
        first.left -= work
        if first.left <= TINY:
            process.spare.popleft()

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (when, next(self.number), what))

    def _block(self, process: _Process) -> None:
        process.blocked_since = self.now

    def _wake(self, process: _Process, waited_until: float | None = None) -> None:
        """It goes on now; what passed after `waited_until` was communication."""
        assert process.blocked_since is not None
        border = self.now if waited_until is None else min(self.now, max(process.blocked_since, waited_until))
        process.spent["wait"] += max(0.0, border - process.blocked_since)
        process.spent["communication"] += self.now - border
        process.blocked_since = None
        self._go_on(process)

    def _rested(self, process: _Process, phase: str) -> None:
        assert process.blocked_since is not None
        process.spent[phase] += self.now - process.blocked_since
        process.blocked_since = None
        self._go_on(process)

    # ------------------------------------------------------------ acts

    def _go_on(self, process: _Process) -> None:
        """The next acts of a process, until one takes time."""
        if process.settling and self._settle(process):
            return
        for act in process.acts:
            if self._takes_time(process, act):
                return
        process.done = True

    def _takes_time(self, process: _Process, act: Act) -> bool:
        match act:
            case Work(phase, seconds):
                work = seconds * process.luck
                process.phase, process.left = phase, work if work > TINY else 0.0
                return process.left > 0
            case Idle(phase, seconds):
                if seconds * process.luck <= TINY:
                    return False
                self._block(process)
                self._at(self.now + seconds * process.luck, lambda: self._rested(process, phase))
                return True
            case Meet():
                return self._meet(process, act)
            case Launch(name, members, seconds):
                key = self._key(process, name)
                self.launched[key] += 1
                if self.launched[key] == members:
                    self.ends[key] = self.now + seconds
                    self._at(self.ends[key], lambda: self._ended(key))
                return False
            case Await(name):
                key = (name, process.counts[name] - 1)
                if self.ends.get(key, math.inf) <= self.now + TINY:
                    return False
                self._block(process)
                self.awaiting[key].append(process)
                return True
            case Send(name, seconds):
                self.messages[name].append(self.now + seconds)
                self._at(self.now + seconds, lambda: self._deliver(name))
                return False
            case Receive(name):
                if self.messages[name] and self.messages[name][0] <= self.now + TINY:
                    self.messages[name].popleft()
                    return False
                self._block(process)
                self.waiting[name].append(process)
                return True
            case Take(lock):
                if lock not in self.holder:
                    self.holder[lock] = process
                    return False
                self._block(process)
                self.queue[lock].append(process)
                return True
            case Release(lock):
                self._hand_over(lock)
                return False
            case Spare(phase, seconds):
                if seconds * process.luck > TINY:
                    process.spare.append(_Shelved(phase, seconds * process.luck))
                return False
            case Settle():
                return self._settle(process)

    def _settle(self, process: _Process) -> bool:
        """What is left of the spare work, one piece after the other."""
        process.settling = bool(process.spare)
        if process.spare:
            piece = process.spare.popleft()
            process.phase, process.left = piece.phase, piece.left
        return process.settling

    def _key(self, process: _Process, name: str) -> tuple[str, int]:
        """Collectives of one name are told apart by how often a process has come to it."""
        process.counts[name] += 1
        return name, process.counts[name] - 1

    def _meet(self, process: _Process, act: Meet) -> bool:
        key = self._key(process, act.name)
        there = self.arrived[key]
        there.append(process)
        self.takes[key] = max(self.takes[key], act.seconds)  # members may send unequal parts
        self._block(process)
        if len(there) == act.members:
            complete = self.now
            self._at(self.now + self.takes.pop(key), lambda: self._met(key, complete))
        return True

    def _met(self, key: tuple[str, int], complete: float) -> None:
        for process in self.arrived.pop(key):
            self._wake(process, complete)

    def _ended(self, key: tuple[str, int]) -> None:
        for process in self.awaiting.pop(key, []):
            self._wake(process, process.blocked_since)  # exposed communication

    def _deliver(self, name: str) -> None:
        if self.waiting[name] and self.messages[name] and self.messages[name][0] <= self.now + TINY:
            self.messages[name].popleft()
            receiver = self.waiting[name].popleft()
            assert receiver.blocked_since is not None
            if self.wake and self.now - receiver.blocked_since > YIELD_SECONDS and not receiver.spare:
                self._at(self.now + self.wake, lambda: self._wake(receiver))
            else:
                self._wake(receiver)

    def _hand_over(self, lock: str) -> None:
        if self.queue[lock]:
            self.holder[lock] = self.queue[lock].popleft()
            self._wake_later(self.holder[lock])
        else:
            del self.holder[lock]

    def _wake_later(self, process: _Process) -> None:
        """Not from within another process's acts."""
        self._at(self.now, lambda: self._wake(process))
