"""The slow rank, or server: who is behind the others, and in which phase.

Ranks that meet in every step show equal step times, however slow one of them is. Two signs give it away:

    arrivals   it comes last to the synchronisation points, again and again
    work       it spends more time in phases of its own than any other, and less time standing still

Arrivals are the finer sign. Stages, which hold different layers and never do equal work, have only the second: one is
named only when it is far behind, which is either a slow device or an uneven cut. Ranks that do not keep step (hogwild,
a lock taken freely, a server without rounds) do not stand still for each other: the time for one share is compared.
A server is slow when its updates take longer than those of the others; one alone, when ranks stand still for much of
the step while it updates.

On a machine that others use any rank may be behind for a while, so three things are asked before one is named:

    its own    the time in which it could have worked but something else had its core, beyond that of its peers, is
               taken off
    lasting    at least three quarters of the fit must show the same rank behind in the same phase, by more than it
               varies by chance; where a job is fitted again and again, three quarters of the fits
    again      a row of a comparison names it only if all of its fits (from eight on, all but one in eight) show it, by
               like amounts: in so many rows and comparisons, what happens by chance once in a while happens every day
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from .run import PHASES
from .running_totals import LATE, MADE, STOLEN

LATE_SHARE = 0.05  # of the step that the others wait for a rank which always comes last
WORK_SHARE = 0.15  # of the step that a rank works longer than the next; below, ranks differ by chance
STAGE_SHARE = 0.4  # the same, for stages
ALONE_SHARE = 0.25  # of the step that ranks stand still while the only server updates
PARTS, AGREEING = 4, 3
ROWS_PARTS, ROWS_AGREEING = 8, 7  # of the fits of a row in a comparison
ALIKE = 0.4  # of the median lag that every fit of a row must show
FINE_PARTS, SURE = 16, 3.0  # how many times its standard error, over this many parts, a rank must be behind on average
FEWEST = 8  # marks without which a fit is too short to be looked at in parts
SOME = 0.05  # shares: a rank that made less in a part of the fit was not at work in it
UPDATE = PHASES.index("update")
IDLE = [PHASES.index("communication"), PHASES.index("wait")]
WORK = [number for number, name in enumerate(PHASES) if name not in ("communication", "wait", "other")]


class Finding(NamedTuple):
    """Rank (or server), phase and milliseconds per step behind the others; None where nobody stands out."""

    suspect: dict[str, Any] | None  # who was slow in this fit: one vote where there are several fits
    named: dict[str, Any] | None  # the same, where this fit alone is enough to say so


def slow_rank(figures: Sequence[dict[str, Any]], ranks: int) -> Finding:
    """Out of what every process measured, with its `marks`; servers come after the ranks."""
    tracks = [np.array(item["marks"], dtype=np.float64) for item in figures]
    whole = np.array([track[-1] - track[0] for track in tracks])
    fit = _Fit([item for item in figures if item["rank"] < ranks])
    behind = fit.slowest(whole)
    if behind is None:
        return Finding(None, None)
    number = figures[behind.process]["rank"]
    suspect: dict[str, Any] = {"rank": number} if number < ranks else {"rank": None, "server": number - ranks}
    steps = max(1.0, whole[:ranks, MADE].mean())
    suspect |= {"phase": PHASES[behind.phase], "behind_ms": float(behind.nanoseconds / steps / 1e6)}
    short = min(map(len, tracks)) <= FEWEST
    return Finding(suspect, suspect if short or fit.lasts(behind, tracks) else None)


def agreed(verdicts: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """What several fits of one job say together: somebody is slow when three quarters of them say it, of one phase."""
    case = _most_named(verdicts)
    return _together(case) if case and PARTS * len(case) >= AGREEING * len(verdicts) else None


def told_from_noise(verdicts: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """What the fits of a row in a comparison say together: somebody is slow when all of them show it alike."""
    case = _most_named(verdicts)
    if not case or ROWS_PARTS * len(case) < ROWS_AGREEING * len(verdicts):
        return None
    together = _together(case)
    return together if min(one["behind_ms"] for one in case) >= ALIKE * together["behind_ms"] else None


def _most_named(verdicts: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """The verdicts that name the same process and phase, of those that most of them name."""
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for verdict in verdicts:
        if verdict is not None:
            cases.setdefault((verdict["rank"], verdict.get("server"), verdict["phase"]), []).append(verdict)
    return max(cases.values(), key=len, default=[])


def _together(case: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {**case[0], "behind_ms": median(verdict["behind_ms"] for verdict in case)}


def slow_name(found: Mapping[str, Any]) -> str:
    """How the slow one is called: `rank 1`, or `server 0`."""
    return f"server {found['server']}" if found.get("server") is not None else f"rank {found.get('rank')}"


class _Behind(NamedTuple):
    """Who is slow in a stretch of a fit."""

    process: int  # its place among all: servers come after the ranks
    nanoseconds: float
    excess: np.ndarray  # in every phase, over the mean of its peers

    @property
    def phase(self) -> int:
        return max(WORK, key=lambda number: self.excess[number])


class _Fit:
    """How the ranks of a fit keep step. A stretch of it is an array of processes x columns of their marks."""

    def __init__(self, training: Sequence[dict[str, Any]]):
        self.ranks = len(training)
        self.lockstep = all(item["lockstep"] for item in training)
        self.stages = any(item["repeats"] for item in training)

    def slowest(self, stretch: np.ndarray) -> _Behind | None:
        found = [self._slowest_rank(stretch[: self.ranks]), self._slowest_server(stretch)]
        return max((one for one in found if one is not None), key=lambda one: one.nanoseconds, default=None)

    def lasts(self, whole: _Behind, tracks: Sequence[np.ndarray]) -> bool:
        """Whether most quarters of the fit say the same, and it is behind by more than it varies by chance."""
        quarters = [self.slowest(part) for part in self._parts(tracks, PARTS)]
        if PARTS * sum(_agrees(quarter, whole) for quarter in quarters) < AGREEING * len(quarters):
            return False
        if whole.process >= self.ranks:
            return True
        lags = []
        for part in self._parts(tracks, min(FINE_PARTS, *(len(track) - 1 for track in tracks))):
            phases, stolen = self._for_equal_work(part[: self.ranks])
            work = (phases[:, WORK].sum(axis=1) - stolen) / part[: self.ranks, MADE].mean()
            lags.append(work[whole.process] - np.delete(work, whole.process).mean())
        return len(lags) < 2 or bool(np.mean(lags) >= SURE * np.std(lags, ddof=1) / np.sqrt(len(lags)))

    def _parts(self, tracks: Sequence[np.ndarray], number: int) -> list[np.ndarray]:
        """What every process did in equal parts of the steps, or of the time: clocks start and stop together.

        Parts in which a rank did nothing, because it was done or others had taken its shares, are left out.
        """
        cuts = []
        for track in tracks:
            at = track[:, MADE] if self.lockstep else track[:, : len(PHASES)].sum(axis=1)
            edges = np.linspace(at[0], at[-1], number + 1)
            cuts.append(np.diff([np.interp(edges, at, column) for column in track.T], axis=1))
        parts = [np.array([cut[:, part] for cut in cuts]) for part in range(number)]
        return [part for part in parts if part[: self.ranks, MADE].min() > SOME]

    def _for_equal_work(self, stretch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Phases, and the time without a core, as if every rank had made as many shares; in lockstep they have."""
        made = np.ones(len(stretch)) if self.lockstep else np.maximum(stretch[:, MADE], SOME)
        scale = made.mean() / made
        return stretch[:, : len(PHASES)] * scale[:, None], stretch[:, STOLEN] * scale

    def _slowest_rank(self, stretch: np.ndarray) -> _Behind | None:
        total = _step_time(stretch)
        if self.ranks < 2 or total <= 0:
            return None
        phases, stolen = self._for_equal_work(stretch)
        late = stretch[:, LATE]
        if self.lockstep and not self.stages and late.any():
            slowest = int(late.argmax())
            turns = np.delete(late, slowest).max()  # others come last as well, now and then
            found = _own(slowest, float(late[slowest] - turns), phases, stolen, LATE_SHARE * total)
            if found is not None:
                return found._replace(nanoseconds=found.nanoseconds + float(turns))
        work, idle = phases[:, WORK].sum(axis=1), phases[:, IDLE].sum(axis=1)
        slowest = int(work.argmax())
        behind = work[slowest] - np.delete(work, slowest).max()
        if self.lockstep:
            behind = min(behind, np.delete(idle, slowest).mean() - idle[slowest])
        return _own(slowest, float(behind), phases, stolen, (STAGE_SHARE if self.stages else WORK_SHARE) * total)

    def _slowest_server(self, stretch: np.ndarray) -> _Behind | None:
        training, serving = stretch[: self.ranks], stretch[self.ranks :]
        if not len(serving) or not len(training):
            return None
        phases = serving[:, : len(PHASES)]
        if len(serving) == 1:
            behind = float(training[:, UPDATE].mean())
            return _Behind(self.ranks, behind, phases[0]) if behind > ALONE_SHARE * _step_time(training) else None
        updates = phases[:, UPDATE]
        slowest = int(updates.argmax())
        behind = float(updates[slowest] - np.delete(updates, slowest).max())
        found = _own(slowest, behind, phases, serving[:, STOLEN], WORK_SHARE * _step_time(training))
        return found and found._replace(process=self.ranks + slowest)


def _step_time(training: np.ndarray) -> float:
    return float(training[:, : len(PHASES)].sum(axis=1).mean())


def _agrees(part: _Behind | None, whole: _Behind) -> bool:
    """The same process, and behind in the same phase (not by much less than in any other)."""
    return (
        part is not None
        and part.process == whole.process
        and part.excess[whole.phase] >= 0.5 * max(part.excess[number] for number in WORK)
    )


def _own(slowest: int, behind: float, phases: np.ndarray, stolen: np.ndarray, least: float) -> _Behind | None:
    """Who is slow, if it is still behind once the time without a core, beyond that of its peers, is taken off."""
    behind -= max(0.0, float(stolen[slowest] - np.delete(stolen, slowest).mean()))
    if behind < least or behind <= 0:
        return None
    return _Behind(slowest, behind, phases[slowest] - np.delete(phases, slowest, axis=0).mean(axis=0))
