"""Ranks that go on when one of them dies: they meet on the board and exchange values through the caller.

A process group breaks with its first dead member. Strategies whose ranks never wait for each other inside a step need
none: a meeting counts the living alone, the first living rank leads, and what is gathered travels over the lines that
every process has to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import RankFailed
from ..rank import Rank
from .heartbeats import Board


class SurvivingRank(Rank):
    """A rank that needs no other to live."""

    _exchanges = 0

    @property
    def leads(self) -> bool:
        return self.index == self.board.leader

    def barrier(self) -> None:
        self.board.meet(self.index)

    def gather(self, value: Any) -> list[Any] | None:
        """Everybody's value, on every rank that trains: it may have to lead a moment later. None for the dead."""
        number = self._put(value)
        self.barrier()
        if self.serves:
            return None
        found: dict[int, Any] = self.ask("exchange", ("collect", number, None, None))
        return [found.get(index) for index in range(self.processes)]

    def agree(self, value: Any) -> Any:
        """The leading rank's value, everywhere."""
        number = self._put(value)
        self.barrier()
        found: dict[int, Any] = self.ask("exchange", ("collect", number, None, None))
        return found[min(found)]

    def deliver(self, outcome: Any) -> bool:
        """Bring the outcome to safety: nobody leaves before the caller has it, from whoever leads in the end."""
        if outcome is not None:
            self.ask("exchange", ("outcome", None, None, outcome))
        self.barrier()
        return bool(self.ask("exchange", ("is delivered", None, None, None)))

    def _put(self, value: Any) -> int:
        number, self._exchanges = self._exchanges, self._exchanges + 1
        self.ask("exchange", ("put", number, self.index, value))
        return number


class Exchange:
    """The caller's side of gathering: holds what each process put until it is collected."""

    def __init__(self, answer: Callable[[str, Any], Any]):
        self._answer = answer
        self._values: dict[int, dict[int, Any]] = {}
        self.outcome: Any = None

    def __call__(self, kind: str, content: Any) -> Any:
        if kind != "exchange":
            return self._answer(kind, content)
        action, number, index, value = content
        if action == "put":
            self._values.setdefault(number, {})[index] = value
            self._values.pop(number - 3, None)  # everyone has met twice since
            return None
        if action == "outcome":
            self.outcome = value
        if action in ("outcome", "is delivered"):
            return self.outcome is not None
        return self._values.get(number, {})


def may_go_on(failure: RankFailed, board: Board) -> bool:
    """Whether the others can do without this rank: it trained, it was past its start, and it is not the last."""
    if failure.rank is None or failure.rank >= board.ranks or failure.kind not in ("died", "raised", "stalled"):
        return False
    return any(rank != failure.rank for rank in board.living()) and board.beat(failure.rank).step > 0
