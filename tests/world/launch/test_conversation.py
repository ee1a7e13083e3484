"""Who is named when several processes of a launch have failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from manyhands.errors import Kind, RankFailed
from manyhands.world.health.heartbeats import Board
from manyhands.world.launch import conversation
from manyhands.world.launch.conversation import Conversation


class Told(Conversation):
    """Two ranks; what they say is written down. Rank 1 has exited with a code, which may have been for want of another."""

    def __init__(self, *words: tuple[int, str, Any]):
        super().__init__(Board(2), range(2))
        self.words = list(words)

    def heard(self) -> Iterator[tuple[int, str, Any]]:
        yield from self.words
        self.words = []

    def death(self, index: int) -> RankFailed:
        failure = RankFailed("it exited with code 3", rank=index, kind="died")
        self.doubtful.append(failure)
        return failure

    def answer(self, index: int, answer: Any) -> None: ...

    def all_stacks(self) -> str:
        return ""

    def go_on_without(self, failure: RankFailed) -> None: ...


def failed(kind: Kind) -> tuple[int, str, RankFailed]:
    return 0, "failed", RankFailed(f"rank 0: {kind}", rank=0, kind=kind)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([failed("consequence"), (1, "gone", None)], "it exited with code 3"),
        ([(1, "gone", None), failed("consequence")], "it exited with code 3"),
        ([(1, "gone", None), failed("raised")], "rank 0: raised"),
        ([failed("consequence")], "rank 0: consequence"),
        ([failed("consequence"), (0, "gone", None)], "rank 0: consequence"),  # not its own end
    ],
)
def test_who_exited_is_named_and_not_who_missed_it(words: Any, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the caller heard first of the rank that waited in vain, and named what that one had met."""
    monkeypatch.setattr(conversation, "GRACE", 0.01)
    with pytest.raises(RankFailed, match=named):
        Told(*words).wait(None, None, None, None, None)
