"""The rows of a comparison: one for every strategy and number of ranks, with their threads, folders and refusals."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import manyhands as mh
from manyhands.errors import BadInput
from manyhands.studies.contenders import Contender, rank_counts
from manyhands.studies.contenders import contenders as rows_on
from manyhands.world.engines.local import Local


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["manyhands.world.engines.engine"], "available_cores", lambda: 8)


def contenders(*arguments: Any) -> list[Contender]:
    return rows_on(*arguments, Local())


def shown(*arguments: Any) -> list[tuple[str, int | None, str]]:
    return [(row.label, row.threads, row.folder) for row in contenders(*arguments)]


def test_one_process_is_shown_with_a_ranks_threads_and_with_all_cores() -> None:
    assert shown(["ddp", "ddp", "pp:chunks=2"], 4, None) == [
        ("single, 2 threads", 2, "single-2t"),
        ("single, 8 threads", 8, "single-8t"),
        ("ddp", 2, "ddp"),
        ("pipeline:chunks=2", 2, "pipeline-chunks-2"),
    ]
    rows = contenders(["single", "ddp"], 2, 1)
    assert [(row.label, row.ranks) for row in rows] == [("single, 1 thread", 1), ("ddp", 2)]


def test_a_row_for_every_number_of_ranks_whose_ranks_are_alike() -> None:
    """With `cores // ranks` threads one rank had all cores, and more of them nothing to gain."""
    assert shown(["ddp"], [4, 1, 2, 2], None) == [
        ("single, 2 threads", 2, "single-2t"),
        ("single, 8 threads", 8, "single-8t"),
        ("ddp on 1 rank", 2, "ddp-1r"),
        ("ddp on 2 ranks", 2, "ddp-2r"),
        ("ddp on 4 ranks", 2, "ddp-4r"),
    ]


def test_rows_of_one_strategy_with_their_own_ranks_are_all_kept() -> None:
    """Rows were told apart by a name without ranks: of `ddp:ranks=1 ddp:ranks=2` the first was dropped."""
    rows = contenders(["ddp:ranks=1", "ddp:ranks=2", mh.DDP(ranks=2), mh.DDP(ranks=3)], None, None)
    assert [(row.label, row.asked) for row in rows[2:]] == [
        ("ddp on 1 rank", "ddp"),
        ("ddp on 2 ranks", "ddp"),
        ("ddp on 3 ranks", "ddp"),
    ]
    assert len({row.folder for row in rows}) == len(rows)


def test_a_number_that_a_strategy_cannot_have_is_a_row_with_its_reason() -> None:
    rows = contenders(["hybrid"], [1, 2, 3, 4], None)[2:]
    assert [(row.asked, row.ranks, row.strategy is None) for row in rows] == [
        ("hybrid", 1, True), ("hybrid", 2, False), ("hybrid", 3, True), ("hybrid", 4, False),
    ]  # fmt: skip
    assert "replicas x stages must be the number of ranks" in str(rows[0].refusal)
    assert [row.folder for row in rows] == [
        "hybrid-1r", "hybrid-replicas-1-stages-2", "hybrid-3r", "hybrid-replicas-2-stages-2",
    ]  # fmt: skip


def test_a_strategy_that_can_have_none_of_the_numbers_is_bad_input() -> None:
    with pytest.raises(BadInput, match="replicas x stages must be the number of ranks"):
        contenders(["ddp", "hybrid"], [1, 3], None)
    with pytest.raises(BadInput, match="ddp:ranks=3 has 3 ranks but ranks=1 was asked for"):
        contenders(["ddp:ranks=3"], [1, 2], None)
    with pytest.raises(BadInput, match='no strategy named "dpp"; did you mean "ddp"'):
        contenders(["dpp"], [1, 2], None)


def test_a_strategy_with_ranks_of_its_own_is_one_row_among_the_others() -> None:
    rows = contenders(["ddp", "hogwild:ranks=2"], [1, 2, 4], None)[2:]
    assert [(row.name, row.ranks) for row in rows] == [("ddp", 1), ("ddp", 2), ("ddp", 4), ("hogwild", 2)]


def test_one_process_is_once_whatever_the_numbers_of_ranks() -> None:
    assert [label for label, _, _ in shown(["single"], [1, 2, 4], None)] == ["single, 2 threads", "single, 8 threads"]


@pytest.mark.parametrize("ranks", [0, [0, 2], [1, "2"], True, "1,2", [1.5], -1])
def test_ranks_are_whole_numbers(ranks: Any) -> None:
    with pytest.raises(BadInput, match=r"ranks must be a whole number of at least 1 \(found"):
        rank_counts(ranks)


def test_no_ranks_at_all() -> None:
    with pytest.raises(BadInput, match="ranks is an empty list"):
        rank_counts([])
    assert rank_counts(range(1, 4)) == [1, 2, 3]


class Small(Local):
    """An engine with three places, of which each has four cores."""

    def check(self, processes: int, name: str, survives: bool) -> None:
        self.room = processes
        if processes > 3:
            raise BadInput(f"{name} needs {processes} places (there are 3)")

    def reserve(self, processes: int) -> None:
        self.reserved = processes

    def threads(self, ranks: int) -> int:
        assert ranks <= self.room  # it was checked before
        return 4


def test_an_engine_without_room_for_a_row_is_its_reason_and_its_cores_are_shared_out() -> None:
    engine = Small()
    rows = rows_on(["ddp"], [1, 2, 4], None, engine)
    assert [(row.label, row.threads, row.refusal) for row in rows] == [
        ("single, 4 threads", 4, None),
        ("ddp on 1 rank", 4, None),
        ("ddp on 2 ranks", 4, None),
        ("ddp on 4 ranks", None, "ddp needs 4 places (there are 3)"),
    ]
    assert engine.reserved == 2
    with pytest.raises(BadInput, match="ddp needs 4 places"):
        rows_on(["ddp"], 4, None, Small())


def test_ranks_of_hybrid_have_as_many_threads_whatever_their_stages_are() -> None:
    """Its rows have other names: on 16 cores two ranks had eight threads each, sixteen one, and were compared."""
    rows = contenders(["hybrid", "ddp"], [2, 4, 8], None)
    assert {row.threads for row in rows if not row.single} == {1}
