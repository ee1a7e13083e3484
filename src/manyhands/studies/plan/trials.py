"""Which rows are tried for a moment: those with few processes.

A row with more follows from a row of the same strategy that was tried: what its simulation got wrong there, it gets wrong
again. Where nobody asked for such a row, one is tried all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby

from ...errors import BadInput
from ...strategies import make_strategy
from ...strategies.contract import Strategy, processes
from ..contenders import Contender

MOST_TRIED = 4  # processes of a row that is tried; what has more is simulated


def key(row: Contender) -> tuple[str, int, int | None]:
    """What tells a row from all others."""
    return row.name, row.ranks, row.threads


def size(strategy: Strategy) -> int:
    """Its processes, or the threads that train in one."""
    return max(processes(strategy), strategy.ranks)


def rows_tried(rows: Sequence[Contender]) -> list[Contender]:
    """The rows worth a trial: `single` first, with all cores, which nothing else tells of; of every strategy first the row
    with most ranks, from which the others follow most surely."""
    small = [row for row in rows if row.strategy is not None and size(row.strategy) <= MOST_TRIED]
    ordered = sorted(small, key=lambda row: (not row.single, row.asked, -row.ranks, -(row.threads or 0)))
    ranked = [list(found) for _, found in groupby(ordered, key=lambda row: row.asked)]
    depth = max(map(len, ranked), default=0)
    return [found[place] for place in range(depth) for found in ranked if place < len(found)]


def anchors(rows: Sequence[Contender]) -> list[Contender]:
    """Rows that nobody asked for: of strategies that were asked for with many ranks, the largest that may be tried."""
    there = {(row.asked, row.threads, row.ranks) for row in rows}
    large = [row for row in rows if row.strategy is not None and size(row.strategy) > MOST_TRIED]
    found = {(row.asked, row.threads): next(_smaller(row), None) for row in large}
    return [row for row in found.values() if row and (row.asked, row.threads, row.ranks) not in there]


def _smaller(row: Contender) -> Iterator[Contender]:
    for ranks in range(MOST_TRIED, 1, -1):
        with suppress(BadInput):  # a number that this strategy cannot have
            made = make_strategy(row.asked, ranks)
            if size(made) <= MOST_TRIED:
                yield Contender(row.asked, str(made), made.ranks, made, row.threads, counted=True)
