"""How strategies scale: the rows of one strategy with several numbers of ranks, and what more ranks could bring at best.

Cores are shared out among the ranks of a row, so twice the ranks are not twice the machine. The ideal is what as many
processes would train that each are as fast as one process with a rank's threads, as many as the cores can hold at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from ..record.run import Run
from .comparing import baselines, measured, ratios, setting, speedup
from .figures import hosts, kind, number, speed

WORTH = 0.1  # of what further ranks would bring at best: with less they do not pay


class Point(NamedTuple):
    """The speed of a run as a multiple of the base's, in the middle and in the outermost rounds."""

    run: Run
    speedup: float
    low: float
    high: float


@dataclass(frozen=True)
class Scaling:
    """One strategy over several numbers of ranks, fewest first, beside what its speed-ups are over."""

    name: str
    runs: list[Run]
    base: Run
    others: Sequence[Run]  # all runs on the page, `single` among them

    @property
    def weak(self) -> bool:
        """Whether the batch grows with the ranks."""
        return self.base.batch_per_rank is not None

    @property
    def over_itself(self) -> bool:
        """Whether speed-ups are over its own fewest ranks, and not over one process."""
        return self.base is self.runs[0]

    @property
    def points(self) -> list[Point]:
        return [point(run, self.base) for run in self.runs]

    def ideal(self, run: Run) -> float | None:
        """The speed-up of a run whose ranks cost each other nothing; None where one process was not measured so."""
        alone, base = self._one_process(run), self._one_process(self.base)
        if run.threads == self.base.threads or kind(run) != "cpu":
            alone = base = 1.0
        at_once, base_at_once = at_work(run), at_work(self.base)
        return at_once * alone / (base_at_once * base) if alone and base else None

    def _one_process(self, run: Run) -> float | None:
        same = [single for single in baselines(run, self.others) if single.threads == run.threads]
        return speed(same[0]) if same else None

    def last_that_paid(self) -> int:
        """The index of the last number of ranks that was worth more than the last one before it that was."""
        paid = 0
        for index, run in enumerate(self.runs):
            if index and point(run, self.runs[paid]).low > 1 and gained(run, self.runs[paid]) >= 1:
                paid = index
        return paid


def scalings(runs: Sequence[Run]) -> list[Scaling]:
    """Every strategy that was measured with several numbers of ranks, in the order of the runs."""
    groups: dict[tuple[Any, ...], dict[int, Run]] = {}
    for run in measured(runs):
        if run.strategy not in ("single", "script"):
            same = (family(run), run.comparison, setting(run), kind(run), run.precision, run.accumulate)
            groups.setdefault(same, {})[run.ranks] = run
    found: list[Scaling] = []
    tasks = {key[2][0] for key, rows in groups.items() if len(rows) > 1}
    for key, rows in groups.items():
        ordered = [rows[ranks] for ranks in sorted(rows)]
        if len(ordered) > 1:
            singles = [one for one in baselines(ordered[0], runs) if one.comparison == ordered[0].comparison]
            base = singles[-1] if singles and ordered[0].ranks > 1 else ordered[0]
            name = f"{key[0]} ({key[2][0]})" if len(tasks) > 1 else key[0]
            alike = [one for one in found if one.weak == (base.batch_per_rank is not None)]
            again = [one.name.split(" #")[0] for one in alike].count(name)
            found.append(Scaling(f"{name} #{again + 1}" if again else name, ordered, base, runs))
    return found


def family(run: Run) -> str:
    """The strategy as it was asked for: what its rows with other ranks are called too."""
    return run.asked or run.label


def point(run: Run, base: Run) -> Point:
    known = ratios(run, base)
    middle = median(known) if len(known) > 2 else speedup(run, base) or 0.0
    return Point(run, middle, min(known[0], middle), max(known[-1], middle))


def gained(run: Run, fewer: Run) -> float:
    """What further ranks brought, in multiples of what makes them worth having: 1 and more is."""
    return (point(run, fewer).speedup - 1) / _needed(run, fewer)


def surely_not_worth(run: Run, fewer: Run) -> bool:
    """Whether further ranks brought too little in every round; what is neither worth having nor this is not known."""
    return point(run, fewer).high - 1 < _needed(run, fewer)


def _needed(run: Run, fewer: Run) -> float:
    return WORTH * (run.ranks / fewer.ranks - 1)


def cores(run: Run) -> float | None:
    """Of all hosts together, taken to be alike."""
    known = number((run.environment or {}).get("cores"))
    return known * max(1, len(hosts(run))) if known else None


def at_work(run: Run) -> float:
    """How many of its ranks can compute at the same time."""
    ranks = run.ranks or 1
    if kind(run) != "cpu":
        return min(ranks, len(set(run.devices or [])) or ranks)
    known = cores(run)
    return min(ranks, max(1.0, known / (run.threads or 1))) if known else ranks
