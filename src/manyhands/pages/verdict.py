"""The verdict of a comparison: one sentence on which row is fastest, and whether that is the strategy's doing.

The fastest strategy is held against the fastest row of one process, which is often the one with all cores: a gain that
more threads bring as well is not the strategy's. Three things are kept apart, and none is said for another:

    faster    in every round, and by more than a hair
    as fast   no round shows more than a small difference
    unclear   the rounds allow both: the sentence says so, and how many rounds may tell

A busy machine takes the conclusions away and leaves the figures: they would be about the machine's other users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..record.run import Run
from .comparing import baselines, measured, names, relation, setting, speedup
from .doubt import advice, cannot_tell, evidence
from .figures import kind, largest_phase, percent, phase_times, speed, taken_share
from .phrases import amount, capital, joined, process, times
from .script_words import is_script, script_verdict

OPEN = ("same", "unclear")  # relations that make nobody the faster one


class Ranking:
    """Runs that are spoken of together, each by its name, the measured ones by their speed."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = runs
        self.ranking = sorted(measured(runs), key=lambda run: -(speed(run) or 0))
        self.strategies = [run for run in self.ranking if run.strategy != "single"]
        self.busy = any(map(taken_share, self.ranking))
        self._names = dict(zip(map(id, runs), names(runs), strict=True))

    def name(self, run: Run) -> str:
        return self._names[id(run)]

    @property
    def comparable(self) -> bool:
        return len({setting(run) for run in self.ranking}) == 1


def verdict(rows: Ranking, hinted: Callable[[Run], bool] = lambda run: False) -> str:
    """`hinted`: whether the record of a run gives a hint, which says more than its largest phase."""
    scripts = sorted(filter(measured_script, rows.runs), key=lambda run: run.ranks)
    if scripts and all(map(is_script, rows.runs)) and len({setting(run) for run in scripts}) == 1:
        return script_verdict(scripts)
    if not rows.ranking:
        return "No run was completed, so there is nothing to compare."
    if len(rows.ranking) == 1:
        return f"{_alone(rows, rows.ranking[0], hinted)}."
    if not rows.comparable:
        return _incomparable(rows.ranking)
    if not rows.strategies:
        telling = len({process(run) for run in rows.ranking}) == len(rows.ranking)
        return f"{capital(_lead(rows.ranking, process)) if telling else _lead(rows.ranking, rows.name)}."
    best = rows.strategies[0]
    singles = baselines(best, rows.runs)
    if singles:
        return _Verdict(rows, best, singles).sentence()
    leader = _lead(rows.strategies, rows.name) if len(rows.strategies) > 1 else _alone(rows, best, hinted)
    return f"{leader}; without a `single` baseline it is impossible to say whether parallelism helps."


def measured_script(run: Run) -> bool:
    """Its samples may not be known, its steps are."""
    return is_script(run) and run.status == "done" and bool(phase_times(run))


class _Verdict:
    """The fastest strategy, and those that cannot be told from it, against one process.

    `base` has the threads of one rank, `rival` is the fastest. Rows with a wide spread are beside many others; only
    those that stand to both as the fastest does are spoken of with it.
    """

    def __init__(self, rows: Ranking, best: Run, singles: Sequence[Run]):
        self.busy = rows.busy
        fastest = max(singles, key=lambda run: speed(run) or 0)
        level = [run for run in rows.strategies if run is best or relation(run, best) in OPEN]
        best = next(
            (run for run in level if relation(run, fastest) == "faster"), best
        )  # of these, one that surely wins
        self.base = next((single for single in singles if single.threads == best.threads), singles[0])
        self.rival = fastest if kind(best) == "cpu" else self.base
        self.standing, self.over_base = relation(best, self.rival), relation(best, self.base)
        self.tied = [  # in the order of the table, for there is no other
            run
            for run in measured(rows.runs)
            if run is best
            or (
                run.strategy != "single"
                and relation(run, best) in OPEN
                and (relation(run, self.rival), relation(run, self.base)) == (self.standing, self.over_base)
            )
        ]
        self.called = [rows.name(run) for run in self.tied]
        self.who, self.verb = joined(self.called), "is" if len(self.tied) == 1 else "are"

    def sentence(self) -> str:
        told = {"faster": self.wins, "slower": self.loses, "same": self.is_as_fast, "unclear": self.cannot_be_told}
        return told[str(self.standing)]()

    def wins(self) -> str:
        text = f"{self.who} {self.verb} {faster(self.tied, [self.rival])} than {process(self.rival)}"
        if self.base is self.rival or self.over_base != "faster":
            return f"{text}."
        return f"{text} and {faster(self.tied, [self.base])} than {process(self.base)}."

    def loses(self) -> str:
        text = f"{capital(process(self.rival))} is {faster([self.rival], self.tied)} than {self.who}"
        if self.base is self.rival:
            return f"{text}{self._so('on this machine, parallel training costs more than it saves')}."
        base = process(self.base)
        if self.over_base == "faster":
            gain = f"which {self.verb} {faster(self.tied, [self.base])} than {base}"
            return f"{text}, {gain}{self._so('here threads use the cores better than ranks do')}."
        if self.over_base == "unclear":
            return f"{text}, which {evidence([*self.tied, self.base])} cannot tell from {base}."
        standing = "only as fast as" if self.over_base == "same" else "slower even than"
        return f"{text}, which {self.verb} {standing} {base}."

    def is_as_fast(self) -> str:
        if self.base is self.rival or self.over_base != "faster":
            gain = self._so("more ranks gain nothing here")
            return f"{self.who} {self.verb} only as fast as {process(self.rival)}{gain}."
        text = f"{self.who} {self.verb} {faster(self.tied, [self.base])} than {process(self.base)}"
        gain = self._so(f"the gain is {self._further_cores()}, not {joined(self.called, 'or')}")
        return f"{text}, but {process(self.rival)} is as fast{gain}."

    def cannot_be_told(self) -> str:
        pair = [*self.tied, self.rival]
        if self.base is self.rival or self.over_base != "faster":
            return f"{cannot_tell(pair, [*self.called, process(self.rival)])}."
        text = f"{self.who} {self.verb} {faster(self.tied, [self.base])} than {process(self.base)}"
        them = "it" if len(self.tied) == 1 else "them"
        return f"{text}, but {evidence(pair)} cannot tell {them} from {process(self.rival)}; {advice(pair)}."

    def _so(self, conclusion: str) -> str:
        return "" if self.busy else f": {conclusion}"

    def _further_cores(self) -> str:
        more = (self.rival.threads or 0) - (self.base.threads or 0)
        if (self.base.threads, more) == (1, 1):
            return "the second core"
        return f"the other {amount(more, 'core')}" if self.base.threads and more > 1 else "the further threads"


def _alone(rows: Ranking, run: Run, hinted: Callable[[Run], bool]) -> str:
    text = f"{rows.name(run)} trains {speed(run):,.0f} samples/s on {amount(run.ranks, 'rank')}"
    largest = None if hinted(run) else largest_phase(run)
    return f"{text}; {percent(largest[1])} of its step is {largest[0]}" if largest else text


def _incomparable(ranking: Sequence[Run]) -> str:
    parts = [
        f"{noun} ({joined([str(value) for value in values])})"
        for noun, position in (("task", 0), ("batch size", 1))
        if len(values := list(dict.fromkeys(setting(run)[position] for run in ranking))) > 1
    ]
    if len({setting(run)[2:] for run in ranking}) > 1:
        parts.append("machine")
    return f"These runs differ in {joined(parts)}, so their speeds are not compared."


def _lead(ranking: Sequence[Run], name: Callable[[Run], str]) -> str:
    """The fastest against the next: all there is to say without one process to measure against."""
    tied = [run for run in ranking if run is ranking[0] or relation(run, ranking[0]) in OPEN]
    rest = [run for run in ranking[1:] if relation(run, ranking[0]) not in OPEN]
    lead = f"{faster(ranking[:1], rest[:1])} than {name(rest[0])}" if rest else ""
    if len(tied) == 1:
        return f"{name(ranking[0])} is {lead}{', the next' if len(rest) > 1 else ''}"
    called = [name(run) for run in tied]
    if all(relation(run, ranking[0]) == "same" for run in tied[1:]):
        return f"{joined(called)} are equally fast{', ' + lead if rest else ''}"
    return cannot_tell(tied, called)


def faster(ones: Sequence[Run], others: Sequence[Run]) -> str:
    """How much faster; about how much, or from how much to how much, where there are several on a side."""
    ratios = [speedup(run, than) or 1.0 for run in ones for than in others]
    least, most = min(ratios), max(ratios)
    if most < 1.095:
        low, high, unit = f"{100 * (least - 1):.0f}", f"{100 * (most - 1):.0f}", " %"
    else:
        low, high, unit = f"{least:.2f}x" if least < 1.095 else times(least), times(most), ""
    if low != high:
        return f"{low} to {high}{unit} faster"
    return f"{'about ' if len(ratios) > 1 else ''}{high}{unit} faster"
