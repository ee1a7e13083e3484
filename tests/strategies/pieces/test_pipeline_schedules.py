"""Schedules: every chunk once, no deadlock, what is held is bounded, and the time is the formula's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.errors import BadInput
from manyhands.strategies.pieces.pipeline_schedules import (
    SCHEDULES,
    Action,
    Backward,
    Forward,
    gpipe,
    interleaved,
    one_f_one_b,
    plan,
    split_sizes,
)
from manyhands.strategies.pieces.pipeline_timeline import Timeline, simulate

RANKS, CHUNKS, PER_RANK = st.integers(1, 8), st.integers(1, 20), st.integers(1, 4)


def plans(name: str, ranks: int, chunks: int, per_rank: int = 1) -> list[list[Action]]:
    return [plan(name, rank, ranks, chunks, per_rank) for rank in range(ranks)]


def run(name: str, ranks: int, chunks: int, per_rank: int = 1, cost: float = 1.0) -> Timeline:
    return simulate(plans(name, ranks, chunks, per_rank), cost, 2 * cost)


@given(ranks=RANKS, chunks=CHUNKS, per_rank=PER_RANK, name=st.sampled_from(sorted(SCHEDULES)))
def test_every_chunk_passes_every_stage_once_each_way(ranks: int, chunks: int, per_rank: int, name: str) -> None:
    per_rank = per_rank if name == "interleaved" else 1
    for rank, actions in enumerate(plans(name, ranks, chunks, per_rank)):
        wanted = [(chunk, turn * ranks + rank) for chunk in range(chunks) for turn in range(per_rank)]
        assert sorted(tuple(a) for a in actions if isinstance(a, Forward)) == sorted(wanted)
        assert sorted(tuple(a) for a in actions if isinstance(a, Backward)) == sorted(wanted)


@given(ranks=RANKS, chunks=CHUNKS, per_rank=PER_RANK, name=st.sampled_from(sorted(SCHEDULES)))
def test_chunks_are_backwarded_in_order_so_that_gradients_sum_alike(
    ranks: int, chunks: int, per_rank: int, name: str
) -> None:
    per_rank = per_rank if name == "interleaved" else 1
    for actions in plans(name, ranks, chunks, per_rank):
        for stage in {action.stage for action in actions}:
            order = [action.chunk for action in actions if isinstance(action, Backward) and action.stage == stage]
            assert order == list(range(chunks))


@given(
    ranks=RANKS,
    chunks=CHUNKS,
    per_rank=PER_RANK,
    name=st.sampled_from(sorted(SCHEDULES)),
    costs=st.lists(st.floats(0.0, 9.0), min_size=64, max_size=64),
)
@settings(deadline=None)
def test_no_schedule_deadlocks_whatever_stages_cost(
    ranks: int, chunks: int, per_rank: int, name: str, costs: list[float]
) -> None:
    actions = plans(name, ranks, chunks, per_rank if name == "interleaved" else 1)
    timeline = simulate(actions, lambda stage: costs[stage], lambda stage: costs[-1 - stage], hop_time=0.5)
    assert [len(slots) for slots in timeline.ranks] == [len(rank) for rank in actions]
    assert timeline.held == tuple(_held(rank) for rank in actions)


def _held(actions: list[Action]) -> int:
    """The most chunks forwarded and not yet backwarded, counted another way."""
    signs = [1 if isinstance(action, Forward) else -1 for action in actions]
    return max(sum(signs[: end + 1]) for end in range(len(signs)))


@given(ranks=RANKS, chunks=CHUNKS)
def test_what_is_held_is_bounded(ranks: int, chunks: int) -> None:
    assert run("gpipe", ranks, chunks).held == (chunks,) * ranks
    assert run("1f1b", ranks, chunks).held == tuple(min(ranks - stage, chunks) for stage in range(ranks))


@given(ranks=RANKS, chunks=CHUNKS, per_rank=PER_RANK)
def test_interleaved_holds_what_its_docstring_says(ranks: int, chunks: int, per_rank: int) -> None:
    for rank, held in enumerate(run("interleaved", ranks, chunks, per_rank).held):
        assert held <= 2 * (ranks - rank - 1) + (per_rank - 1) * ranks + 1


@given(ranks=RANKS, chunks=CHUNKS, name=st.sampled_from(["gpipe", "1f1b"]))
def test_time_and_bubble_are_the_formulas(ranks: int, chunks: int, name: str) -> None:
    timeline = run(name, ranks, chunks)
    assert timeline.total == 3 * (chunks + ranks - 1)
    assert timeline.bubble == pytest.approx((ranks - 1) / (chunks + ranks - 1))


@given(ranks=st.integers(2, 8), chunks=CHUNKS, per_rank=st.integers(2, 4))
def test_interleaved_waits_less(ranks: int, chunks: int, per_rank: int) -> None:
    """The same model in thinner stages: never slower than 1f1b, and the formula's bubble where chunks divide."""
    thin, thick = run("interleaved", ranks, chunks, per_rank), run("1f1b", ranks, chunks, cost=per_rank)
    assert thin.total <= thick.total
    if chunks % ranks == 0:
        assert thin.total < thick.total
        assert thin.bubble == pytest.approx((ranks - 1) / (per_rank * chunks + ranks - 1))


def test_one_stage_a_rank_interleaved_is_as_fast_as_1f1b() -> None:
    assert run("interleaved", 3, 6).total == run("1f1b", 3, 6).total


@pytest.mark.parametrize(
    ("schedule", "timeline"),
    [
        (gpipe, run("gpipe", 3, 4)),
        (one_f_one_b, run("1f1b", 3, 4)),
        (interleaved, run("interleaved", 2, 2, 2)),
    ],
)
def test_the_picture_in_the_docstring_is_what_happens(
    schedule: Callable[..., Iterator[Action]], timeline: Timeline
) -> None:
    drawn = [line.strip() for line in (schedule.__doc__ or "").splitlines() if line.strip().startswith("rank ")]
    assert drawn == timeline.picture().splitlines()


def test_a_schedule_that_waits_for_itself_is_found() -> None:
    backwards_first = [[Backward(0, 0), Forward(0, 0)], [Forward(0, 1), Backward(0, 1)]]
    with pytest.raises(ValueError, match=r"wait for each other forever: Backward\(chunk=0, stage=0\)"):
        simulate(backwards_first)


def test_the_clock_counts_what_it_is_told() -> None:
    timeline = simulate(plans("1f1b", 2, 1), lambda stage: 1.0 + stage, 3.0, hop_time=0.5)
    assert timeline.total == 1 + 0.5 + 2 + 3 + 0.5 + 3
    assert timeline.bubble == pytest.approx(1 - 9 / 20)


def test_names() -> None:
    with pytest.raises(BadInput, match='no schedule named "gpip"; did you mean "gpipe"'):
        plan("gpip", 0, 2, 4)
    with pytest.raises(
        BadInput, match=r"1f1b runs one stage per rank \(stages per rank: 2\); use schedule=interleaved"
    ):
        plan("1f1b", 0, 2, 4, 2)


@given(samples=st.integers(0, 300), chunks=st.integers(1, 40))
def test_chunk_sizes_differ_by_at_most_one(samples: int, chunks: int) -> None:
    sizes = split_sizes(samples, chunks)
    assert sum(sizes) == samples
    assert len(sizes) == min(samples, chunks)
    assert all(size > 0 for size in sizes)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(samples=st.integers(0, 300), split_size=st.integers(1, 40))
def test_split_size_gives_full_chunks_and_the_rest(samples: int, split_size: int) -> None:
    sizes = split_sizes(samples, split_size=split_size)
    assert sum(sizes) == samples
    assert all(size == split_size for size in sizes[:-1])
    assert all(0 < size <= split_size for size in sizes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"give either chunks or split_size \(found chunks=None, split_size=None\)"),
        ({"chunks": 2, "split_size": 2}, r"give either chunks or split_size \(found chunks=2, split_size=2\)"),
        ({"chunks": 0}, r"chunks must be at least 1 \(found 0\)"),
        ({"split_size": -1}, r"split_size must be at least 1 \(found -1\)"),
    ],
)
def test_bad_sizes(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        split_sizes(10, **arguments)
