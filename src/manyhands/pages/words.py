"""Conclusions in words: one or two sentences that follow from the figures, and no more than those allow.

Where the record of one process shows what no strategy cures, a loader that takes most of the step say, that comes first.
A difference inside the spread of the rounds is called "as fast as"; the row of one process with all cores is
asked before any strategy is praised, because a gain that more threads bring as well is not the strategy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..record import first_loss
from ..record.hints import Hint, hints
from ..record.run import Run
from ..record.slow_rank import slow_name
from .comparing import baselines, measured, names, relation, setting, speedup, surely_same
from .figures import accuracy, kind, largest_phase, number, percent, phase_times, speed, speeds
from .script_words import is_script, script_verdict

LOST_ACCURACY = 0.005  # a test accuracy lower by more than this is worth a sentence,
NOISE_ERRORS = 2  # if it is also more standard errors of the difference than this
NO_STRATEGY_CURES = ("loading", "transfer", "augmentation", "launch")  # bottlenecks of one process that lead
MORE_ROUNDS = 9  # where a comparison had none or one
MUCH_SLOWER = 1.5  # so is a strategy this many times slower than the fastest
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def conclusion(runs: Sequence[Run]) -> str:
    """The verdict on speed, and the sentence that matters most beside it."""
    return " ".join(sentences(runs)[:2])


def sentences(runs: Sequence[Run]) -> list[str]:
    """All there is to say, what matters most first."""
    return _Comparison(runs).sentences()


def verdict(runs: Sequence[Run]) -> str:
    """One sentence: which run is fastest, and whether that is the strategy's doing."""
    return _Comparison(runs).verdict()


def remarks(runs: Sequence[Run]) -> list[str]:
    """Everything else worth a sentence, what matters most first."""
    return _Comparison(runs).remarks()


class _Comparison:
    """Runs that are spoken of together, each by its name."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = runs
        self.ranking = sorted(measured(runs), key=lambda run: -(speed(run) or 0))
        self.strategies = [run for run in self.ranking if run.strategy != "single"]
        self.names = dict(zip(map(id, runs), names(runs), strict=True))

    def name(self, run: Run) -> str:
        return self.names[id(run)]

    def sentences(self) -> list[str]:
        first, said = self.cause(), self.verdict()
        if first is None:
            return [said, *self.remarks()]
        return [first, f"As it is, {_small(said)}", *self.remarks()]

    def cause(self) -> str | None:
        """What takes the time of one process, where it is nothing that ranks are for; none where one run stands alone."""
        if len(self.ranking) < 2 or len({setting(run) for run in self.ranking}) > 1 or any(map(is_script, self.runs)):
            return None
        base = min((run for run in self.ranking if run.strategy == "single"), key=_threads, default=self.ranking[0])
        found = next((hint for hint in hints(base) if hint.bottleneck in NO_STRATEGY_CURES), None)
        if found is None:
            return None
        where = f"In {process(base)}" if base.strategy == "single" else f"Under {self.name(base)}"
        return f"{where}, {_small(found.sentence)}"

    # -- the verdict --------------------------------------------------------------------------------------------

    def verdict(self) -> str:
        scripts = sorted((run for run in self.runs if _measured_script(run)), key=lambda run: run.ranks)
        if scripts and all(map(is_script, self.runs)) and len({setting(run) for run in scripts}) == 1:
            return script_verdict(scripts)
        if not self.ranking:
            return "No run was measured to its end, so there is nothing to compare."
        if len(self.ranking) == 1:
            return f"{self.alone(self.ranking[0])}."
        if len({setting(run) for run in self.ranking}) > 1:
            return _incomparable(self.ranking)
        if not self.strategies:
            telling = len({process(run) for run in self.ranking}) == len(self.ranking)
            return f"{_capital(_lead(self.ranking, process)) if telling else _lead(self.ranking, self.name)}."
        best = self.strategies[0]
        singles = baselines(best, self.runs)
        if singles:
            return self.against_one_process(_tied(self.strategies), singles)
        leader = _lead(self.strategies, self.name) if len(self.strategies) > 1 else self.alone(best)
        return f"{leader}; without a `single` baseline it is impossible to say whether parallelism helps."

    def alone(self, run: Run) -> str:
        text = f"{self.name(run)} trains {speed(run):,.0f} samples/s on {_amount(run.ranks, 'rank')}"
        largest = largest_phase(run) if not self.hints(run) else None
        return f"{text}; {percent(largest[1])} of its step is {largest[0]}" if largest else text

    def against_one_process(self, tied: Sequence[Run], singles: Sequence[Run]) -> str:
        """The fastest strategy, and those that cannot be told from it, against one process with a rank's threads and
        with all. Rows with a wide spread are the same as many; only those that stand as the fastest does are spoken
        of with it."""
        best = tied[0]
        base = next((single for single in singles if single.threads == best.threads), singles[0])
        wide = singles[-1] if singles[-1] is not base and kind(best) == "cpu" else None
        against_base, against_wide = relation(best, base), relation(best, wide) if wide else None
        tied = [
            run
            for run in tied
            if relation(run, base) == against_base and (wide is None or relation(run, wide) == against_wide)
        ]
        called = [self.name(run) for run in tied]
        who, verb = _join(called), "is" if len(tied) == 1 else "are"
        if against_base == "faster":
            text = f"{who} {verb} {_faster(tied, [base])} than {process(base)}"
            return f"{text}{_beside_all_cores(called, tied, base, wide, against_wide)}" if wide else f"{text}."
        if wide and against_wide == "slower" and relation(wide, base) == "faster":
            standing = "only as fast as" if against_base == "same" else "slower even than"
            slower = f"{who}, which {verb} {standing} {process(base)}"
            return f"{_capital(process(wide))} is {_faster([wide], tied)} than {slower}."
        if against_base == "same":
            return f"{who} {verb} only as fast as {process(base)}: more ranks gain nothing here."
        return (
            f"{_capital(process(base))} is {_faster([base], tied)} than {who}: "
            "on this machine, parallel training costs more than it saves."
        )

    # -- remarks ------------------------------------------------------------------------------------------------

    def remarks(self) -> list[str]:
        lost = [(run, sentence) for run in measured(self.runs) if (sentence := self.lost_accuracy(run))]
        fastest = self.ranking[0] if self.ranking else next(filter(_measured_script, self.runs), None)
        return [
            *self.other_first_losses(),
            *(sentence for run, sentence in lost if run is fastest),
            *self.slow_ranks(),
            *(self.of_run(fastest, hint) for hint in self.hints(fastest)),
            *self.broken("failed", "failed"),
            *(sentence for run, sentence in lost if run is not fastest),
            *self.much_slower(),
            *self.broken("stopped", "was stopped"),
            *self.broken("refused", "was refused"),
            *filter(None, map(self.accuracy_noise, measured(self.runs))),
        ]

    def hints(self, run: Run | None) -> list[Hint]:
        """What this run's record shows, beyond what other sentences say: a slow rank, or the cause that leads."""
        said = NO_STRATEGY_CURES if self.cause() else ()
        known = hints(run) if run is not None else []
        return [hint for hint in known if hint.bottleneck not in (*said, "straggler", "start")]

    def of_run(self, run: Run | None, hint: Hint) -> str:
        if run is None or len(self.runs) == 1:
            return hint.sentence
        return f"Under {self.name(run)}, {_small(hint.sentence)}"

    def other_first_losses(self) -> list[str]:
        """Exact strategies that do not begin where one process begins."""
        found = []
        for run in measured(self.runs):
            single = next(iter(baselines(run, self.runs)), None)
            if single is not None and (apart := first_loss.differing(run, single)):
                found.append(f"{self.name(run)} {first_loss.in_words(*apart)}; `manyhands verify` finds out why.")
        return found

    def lost_accuracy(self, run: Run) -> str | None:
        reached, reference, noise = self.accuracies(run)
        if reference - reached <= max(LOST_ACCURACY, noise):
            return None
        return (
            f"{self.name(run)} ends {100 * (reference - reached):.1f} points of test accuracy below one process "
            f"({percent(reached, 1)} against {percent(reference, 1)})."
        )

    def accuracy_noise(self, run: Run) -> str | None:
        """A difference that looks like one, and is what another seed would bring as well."""
        reached, reference, noise = self.accuracies(run)
        if not LOST_ACCURACY < abs(reference - reached) <= noise:
            return None
        return (
            f"The test accuracy of {self.name(run)} ({percent(reached, 1)}) and of one process ({percent(reference, 1)}) "
            f"differ by no more than noise: {_samples(run):,} test samples tell {100 * noise:.1f} points apart."
        )

    def accuracies(self, run: Run) -> tuple[float, float, float]:
        """That of a run, that of one process, and the largest difference that their test samples do not tell from none."""
        reached = accuracy(run)
        references = [value for single in baselines(run, self.runs) if (value := accuracy(single)) is not None]
        if run.strategy == "single" or reached is None or not references:
            return 0.0, 0.0, 0.0
        reference = min(references)
        variance = reached * (1 - reached) + reference * (1 - reference)
        noise = NOISE_ERRORS * math.sqrt(max(0.0, variance) / _samples(run)) if _samples(run) else 0.0
        return reached, reference, noise

    def slow_ranks(self) -> list[str]:
        """A sentence for every rank (or server) and phase that is slow, with the strategies under which it is."""
        cases: dict[tuple[str, object], list[Run]] = {}
        for run in self.runs:
            if run.slow_rank:
                cases.setdefault((slow_name(run.slow_rank), run.slow_rank.get("phase")), []).append(run)
        return [
            f"Under {_join([self.name(run) for run in found])}, {who} is slow in `{phase}`{_lags(found)}."
            for (who, phase), found in cases.items()
        ]

    def broken(self, status: str, verb: str) -> list[str]:
        found = [(self.name(run), run.reason) for run in self.runs if run.status == status]
        return [f"{name} {verb}{': ' + _first_line(reason) if reason else ''}." for name, reason in found]

    def much_slower(self) -> list[str]:
        """The slowest strategy, when it is much slower than the fastest run, with the phase that takes its time."""
        if not self.strategies or any(map(is_script, self.runs)) or len({setting(run) for run in self.ranking}) > 1:
            return []
        slowest = self.strategies[-1]
        rival = self.strategies[0] if len(self.strategies) > 1 else self.ranking[0]
        ratio, largest = speedup(rival, slowest), largest_phase(slowest)
        if ratio is None or ratio < MUCH_SLOWER or relation(rival, slowest) != "faster":
            return []
        parts = [f"spends {percent(largest[1])} of its step in {largest[0]}"] if largest else []
        if rival.strategy != "single":  # else the verdict has told how much slower
            parts.insert(0, f"is {_times(ratio)} slower than {self.name(rival)}")
        return [f"{self.name(slowest)} {' and '.join(parts)}."] if parts else []


def _threads(run: Run) -> int:
    return run.threads or 0


def _samples(run: Run) -> int:
    return int((run.test or {}).get("samples") or 0)


def _measured_script(run: Run) -> bool:
    """Its samples may not be known, its steps are."""
    return is_script(run) and run.status == "done" and bool(phase_times(run))


def _tied(ranking: Sequence[Run]) -> list[Run]:
    """The fastest, and those that cannot be told from it."""
    return [run for run in ranking if run is ranking[0] or relation(run, ranking[0]) == "same"]


def _incomparable(ranking: Sequence[Run]) -> str:
    parts = [
        f"{noun} ({_join([str(value) for value in values])})"
        for noun, position in (("task", 0), ("batch size", 1))
        if len(values := list(dict.fromkeys(setting(run)[position] for run in ranking))) > 1
    ]
    if len({setting(run)[2:] for run in ranking}) > 1:
        parts.append("machine")
    return f"These runs differ in {_join(parts)}, so their speeds are not compared."


def _lead(ranking: Sequence[Run], name: Callable[[Run], str]) -> str:
    """The fastest against the next: all there is to say without one process to measure against."""
    tied = _tied(ranking)
    rest = [run for run in ranking[1:] if relation(run, ranking[0]) != "same"]
    lead = f"{_faster(ranking[:1], rest[:1])} than {name(rest[0])}" if rest else ""
    if len(tied) > 1:
        return f"{_join([name(run) for run in tied])} are equally fast{', ' + lead if rest else ''}"
    return f"{name(ranking[0])} is {lead}{', the next' if len(rest) > 1 else ''}"


def _beside_all_cores(called: Sequence[str], tied: Sequence[Run], base: Run, wide: Run, standing: str | None) -> str:
    """How a gain over one process with a rank's threads looks beside one process with all of them."""
    if standing == "faster":
        return f" and {_faster(tied, [wide])} than {process(wide)}."
    if standing != "same":
        better = "here threads use the cores better than ranks do"
        return f", but {process(wide)} is {_faster([wide], tied)} still: {better}."
    if all(surely_same(run, wide) for run in tied):
        more = (wide.threads or 0) - (base.threads or 0)
        gain = f"the other {_amount(more, 'core')}" if base.threads and more > 1 else "the further threads"
        gain = "the second core" if (base.threads, more) == (1, 1) else gain
        return f", but {process(wide)} is as fast: the gain is {gain}, not {_join(called, 'or')}."
    rounds = len(speeds(wide))
    tried, more = (f" in {rounds} rounds", 3 * rounds) if rounds > 1 else ("", MORE_ROUNDS)
    return f", but {process(wide)} could not be told apart from {_join(called)}{tried}; try --rounds {more}."


def _lags(runs: Sequence[Run]) -> str:
    lags = [value for run in runs if (value := number((run.slow_rank or {}).get("behind_ms"))) is not None]
    if not lags:
        return ""
    ends = dict.fromkeys((f"{min(lags):.1f}", f"{max(lags):.1f}"))
    return f" ({' to '.join(ends)} ms per step behind)"


def process(run: Run) -> str:
    if kind(run) != "cpu":
        return "one process on one GPU" if kind(run) == "cuda" else f"one process on {kind(run)}"
    return f"one process with {_amount(run.threads, 'thread')}" if run.threads else "one process"


def _faster(ones: Sequence[Run], others: Sequence[Run]) -> str:
    """How much faster; about how much, or from how much to how much, where there are several on a side."""
    ratios = [speedup(run, than) or 1.0 for run in ones for than in others]
    least, most = min(ratios), max(ratios)
    if most < 1.095:
        low, high, unit = f"{100 * (least - 1):.0f}", f"{100 * (most - 1):.0f}", " %"
    else:
        low, high, unit = f"{least:.2f}x" if least < 1.095 else _times(least), _times(most), ""
    if low != high:
        return f"{low} to {high}{unit} faster"
    return f"{'about ' if len(ratios) > 1 else ''}{high}{unit} faster"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:,.0f}x"


def _amount(value: int | None, noun: str) -> str:
    spelt = _NUMBERS[value] if value is not None and 0 <= value < len(_NUMBERS) else str(value)
    return f"{spelt} {noun}" if value == 1 else f"{spelt} {noun}s"


def _join(parts: Sequence[str], last: str = "and") -> str:
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}" if len(parts) > 1 else "".join(parts)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]


def _first_line(text: object, limit: int = 160) -> str:
    line = next(iter(str(text).strip().splitlines()), "").rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"
