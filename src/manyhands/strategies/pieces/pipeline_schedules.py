"""Pipeline schedules: in which order a rank runs the forward and backward passes of its chunks.

A schedule is a pure generator of actions. It knows nothing of tensors or processes: whoever runs it waits for what an
action needs (the chunk's activations from the stage before, or its gradients from the stage after), does it, and
hands the result on without waiting. `simulate` (pipeline_timeline.py) does just that with a clock, which gives the
pictures below and the bubble: the share of the ranks' time spent waiting. With p stages, m chunks and equal costs,
gpipe and 1f1b both take (m + p - 1) rounds of which m are work, so the bubble is (p - 1) / (m + p - 1); interleaved,
with v stages a rank, shrinks it to (p - 1) / (v m + p - 1) where p divides m.

In the pictures a forward pass takes one column and a backward pass two; digits are chunks, dots are waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...errors import BadInput, did_you_mean


class Forward(NamedTuple):
    """Run the forward pass of a chunk through a stage."""

    chunk: int
    stage: int


class Backward(NamedTuple):
    """Run the backward pass of a chunk through a stage."""

    chunk: int
    stage: int


Action = Forward | Backward


def gpipe(stage: int, stages: int, chunks: int) -> Iterator[Action]:
    """All forward passes, then all backward passes: simple, and every chunk's activations are held at once.

    ```
    F forward, B backward, p = 3 stages, m = 4 chunks
    rank 0  F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 B1 B1 B2 B2 B3 B3
    rank 1  .  F0 F1 F2 F3 .  .  .  B0 B0 B1 B1 B2 B2 B3 B3 .  .
    rank 2  .  .  F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3 .  .  .  .
    ```
    Held at once: m chunks. Huang et al., "GPipe", 2019.
    """
    for chunk in range(chunks):
        yield Forward(chunk, stage)
    for chunk in range(chunks):
        yield Backward(chunk, stage)


def one_f_one_b(stage: int, stages: int, chunks: int) -> Iterator[Action]:
    """Fill the pipeline, then one forward, one backward in turn: the same bubble with fewer activations held.

    ```
    F forward, B backward, p = 3 stages, m = 4 chunks
    rank 0  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3
    rank 1  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .
    rank 2  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .
    ```
    Held at once: p - stage chunks, whatever m is. Narayanan et al., "PipeDream", 2019 (with a flush after each step).
    """
    ahead = min(stages - stage, chunks)
    for chunk in range(ahead):
        yield Forward(chunk, stage)
    for chunk in range(chunks):
        yield Backward(chunk, stage)
        if ahead + chunk < chunks:
            yield Forward(ahead + chunk, stage)


def interleaved(rank: int, ranks: int, chunks: int, stages_per_rank: int = 2) -> Iterator[Action]:
    """1f1b where a rank holds several stages, `ranks` apart: chunks come round more often, so ranks wait less.

    ```
    stages 0 and 2 on rank 0, stages 1 and 3 on rank 1 (lower case: the rank's second stage), m = 2 chunks
    rank 0  F0 F1 f0 f1 .  .  b0 b0 .  b1 b1 B0 B0 B1 B1
    rank 1  .  F0 F1 f0 b0 b0 f1 b1 b1 B0 B0 B1 B1 .  .
    ```
    The chunks go in groups of `ranks`: a group passes the rank's first stage, then its second, and so on; backward the
    other way round. Where the last group is short, the chunks it lacks are left out of the same order, which keeps it
    free of deadlock because chunks never wait for each other.
    Held at once: 2 (p - rank - 1) + (v - 1) p + 1 chunk-stages.
    Narayanan et al., "Efficient large-scale language model training on GPU clusters", 2021.
    """
    groups = [range(first, first + ranks) for first in range(0, chunks, ranks)]
    turns = range(stages_per_rank)
    forwards = [Forward(chunk, turn * ranks + rank) for group in groups for turn in turns for chunk in group]
    backwards = [Backward(chunk, turn * ranks + rank) for group in groups for turn in turns[::-1] for chunk in group]
    ahead = 2 * (ranks - rank - 1) + (stages_per_rank - 1) * ranks + 1
    order: list[Action] = [*forwards[:ahead]]
    for number, backward in enumerate(backwards):
        order += [backward, *forwards[ahead + number : ahead + number + 1]]
    yield from (action for action in order if action.chunk < chunks)


SCHEDULES: dict[str, Callable[..., Iterator[Action]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
}


def plan(schedule: str, rank: int, ranks: int, chunks: int, stages_per_rank: int = 1) -> list[Action]:
    """What a rank does in a step, by the schedule's name."""
    if schedule not in SCHEDULES:
        raise BadInput(f'no schedule named "{schedule}"{did_you_mean(schedule, SCHEDULES)}')
    if stages_per_rank > 1 and schedule != "interleaved":
        raise BadInput(
            f"{schedule} runs one stage per rank (stages per rank: {stages_per_rank}); use schedule=interleaved"
        )
    if schedule == "interleaved":
        return list(interleaved(rank, ranks, chunks, stages_per_rank))
    return list(SCHEDULES[schedule](rank, ranks, chunks))


def split_sizes(samples: int, chunks: int | None = None, split_size: int | None = None) -> list[int]:
    """The sizes of the chunks of a batch: `chunks` of them as equal as can be, or `split_size` samples each.

    With `chunks` the sizes differ by at most one, larger ones first; with `split_size` the last may be smaller.
    Empty chunks are left out, so a batch smaller than `chunks` makes fewer.
    """
    if (chunks is None) == (split_size is None):
        raise BadInput(f"give either chunks or split_size (found chunks={chunks}, split_size={split_size})")
    for name, value in (("chunks", chunks), ("split_size", split_size)):
        if value is not None and value < 1:
            raise BadInput(f"{name} must be at least 1 (found {value})")
    if chunks is not None:
        least, more = divmod(samples, chunks)
        sizes = [least + 1] * more + [least] * (chunks - more)
    else:
        assert split_size is not None
        whole, rest = divmod(samples, split_size)
        sizes = [split_size] * whole + [rest]
    return [size for size in sizes if size]
