"""What the caller of a launch does until it is over: hear its processes, answer them, watch them, name who failed first.

The same whether they are this host's own (processes.py) or those of agents on others (agents/remote_launch.py).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import RankFailed
from ..health.heartbeats import Board

GRACE = 1.0  # seconds a failure that looks like a consequence waits for its cause
LOOK_UP = 0.2  # seconds after which the caller looks at the heartbeats even if nobody says a word

Tell = Callable[[int, str, Any], None]
Watch = Callable[[Board], RankFailed | None]
Forgive = Callable[[RankFailed, Board], bool]


class Conversation(ABC):
    """What has come back so far from the processes `expected`."""

    def __init__(self, board: Board, expected: range):
        self.board, self.expected = board, expected
        self.results: dict[int, Any] = {}
        self.failures: list[RankFailed] = []
        self.doubtful: list[RankFailed] = []  # those of them that may be consequences
        self.spoke: set[int] = set()  # who said themselves why they failed

    @abstractmethod
    def heard(self) -> Iterator[tuple[int, str, Any]]:
        """(who, kind, content) of what processes have said; `gone` where one has hung up. Waits a moment if nobody speaks."""

    @abstractmethod
    def answer(self, index: int, answer: Any) -> None: ...

    @abstractmethod
    def death(self, index: int) -> RankFailed:
        """A process went away without a word: how it ended and where it was."""

    @abstractmethod
    def all_stacks(self) -> str:
        """Where every process is in its code."""

    @abstractmethod
    def go_on_without(self, failure: RankFailed) -> None:
        """The others do without this process from now on."""

    def wait(
        self,
        on_tell: Tell | None,
        on_ask: Callable[[str, Any], Any] | None,
        watch: Watch | None,
        forgive: Forgive | None,
        time_limit: float | None,
    ) -> list[Any]:
        """What each process returned; raises the first failure that is no consequence of another."""
        give_up: float | None = None
        limit = time.monotonic() + time_limit if time_limit else float("inf")
        while len(self.results) < len(self.expected):
            for index, kind, content in self.heard():
                if kind == "done":
                    self.results[index] = content
                elif kind == "failed":
                    self.failures.append(content)
                    self.spoke.add(index)
                elif kind == "gone":
                    if index not in self.results:
                        self.failures.append(self.death(index))
                elif kind == "ask":
                    self.answer(index, on_ask(*content) if on_ask else None)
                elif on_tell:
                    on_tell(index, kind, content)
            if watch and not self.failures and (stalled := watch(self.board)):
                stalled.traceback = stalled.traceback or self.all_stacks()
                self.failures.append(stalled)
            if forgive:
                for failure in [item for item in self.failures if forgive(item, self.board)]:
                    self.go_on_without(failure)
            if time.monotonic() > limit:
                raise RankFailed(
                    f"the run exceeded its time limit of {round(time_limit or 0, 1):g} s", kind="time limit"
                )
            if self.failures:
                causes = [item for item in self.failures if item.kind != "consequence" and item not in self.doubtful]
                give_up = give_up or time.monotonic() + GRACE
                if causes or time.monotonic() > give_up:
                    # rather than who missed them: those that went without a word, not those that told what they missed
                    exits = [item for item in self.doubtful if item in self.failures and item.rank not in self.spoke]
                    raise (causes or exits or self.failures)[0]
        return [self.results[index] for index in self.expected]
