"""Conclusions in words: one or two sentences that follow from the figures, and no more than those allow.

A busy machine comes first, for it weakens all the rest. Where the record of one process shows what no strategy cures, a
loader that takes most of the step say, that comes next; then the verdict (verdict.py), then everything else worth a
sentence, what matters most first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..record import first_loss
from ..record.hints import Hint, hints
from ..record.run import Run
from ..record.slow_rank import slow_name
from .busy import busy_sentence
from .comparing import baselines, measured, relation, speedup
from .costs import largest_excess
from .figures import accuracy, kind, number, percent, speed
from .phrases import first_line, joined, process, small, times
from .scaling import family
from .scaling_words import scaling_sentences
from .script_words import is_script
from .verdict import Ranking, measured_script
from .verdict import verdict as verdict_of

LOST_ACCURACY = 0.005  # a test accuracy lower by more than this is worth a sentence,
NOISE_ERRORS = 2  # if it is also more standard errors of the difference than this
NO_STRATEGY_CURES = ("loading", "transfer", "augmentation", "launch")  # bottlenecks of one process that lead
MUCH_SLOWER = 1.5  # so is a strategy this many times slower than the fastest


def conclusion(runs: Sequence[Run]) -> str:
    """The verdict on speed, and the sentence that matters most beside it; before both, that the machine was busy."""
    return " ".join(sentences(runs)[: 3 if busy_sentence(runs) else 2])


def sentences(runs: Sequence[Run]) -> list[str]:
    """All there is to say, what matters most first."""
    busy = busy_sentence(runs)
    return [*([busy] if busy else []), *_Comparison(runs).sentences()]


def verdict(runs: Sequence[Run]) -> str:
    """One sentence: which run is fastest, and whether that is the strategy's doing."""
    return _Comparison(runs).verdict()


def remarks(runs: Sequence[Run]) -> list[str]:
    """Everything else worth a sentence, what matters most first."""
    return _Comparison(runs).remarks()


class _Comparison:
    """What is said of runs, each by its name."""

    def __init__(self, runs: Sequence[Run]):
        self.runs, self.rows = runs, Ranking(runs)
        self.ranking, self.strategies, self.name = self.rows.ranking, self.rows.strategies, self.rows.name

    def sentences(self) -> list[str]:
        first, said = self.cause(), self.verdict()
        rest = [*scaling_sentences(self.runs), *self.remarks()]
        if first is not None:
            return [first, f"As it is, {small(said)}", *rest]
        doubtful = self.rows.busy and self.rows.comparable
        return [f"As measured, {small(said)}" if doubtful else said, *rest]

    def verdict(self) -> str:
        return verdict_of(self.rows, lambda run: bool(self.hints(run)))

    def cause(self) -> str | None:
        """What takes the time of one process, where it is nothing that ranks are for; none where one run stands alone."""
        if len(self.ranking) < 2 or not self.rows.comparable or any(map(is_script, self.runs)):
            return None
        base = min((run for run in self.ranking if run.strategy == "single"), key=_threads, default=self.ranking[0])
        found = next((hint for hint in hints(base) if hint.bottleneck in NO_STRATEGY_CURES), None)
        if found is None:
            return None
        where = f"In {process(base)}" if base.strategy == "single" else f"Under {self.name(base)}"
        return f"{where}, {small(found.sentence)}"

    # -- remarks ------------------------------------------------------------------------------------------------

    def remarks(self) -> list[str]:
        alike = [run for run in measured(self.runs) if run.batch_per_rank in (None, run.batch_size)]
        lost = [(run, sentence) for run in alike if (sentence := self.lost_accuracy(run))]
        fastest = self.ranking[0] if self.ranking else next(filter(measured_script, self.runs), None)
        return [
            *self.other_first_losses(),
            *(sentence for run, sentence in lost if run is fastest),
            *self.broken("failed", "failed"),
            *self.slow_ranks(),
            *(self.of_run(fastest, hint) for hint in self.hints(fastest)),
            *(sentence for run, sentence in lost if run is not fastest),
            *self.larger_batches(),
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
        return f"Under {self.name(run)}, {small(hint.sentence)}"

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

    def larger_batches(self) -> list[str]:
        """Rows whose batch grew with their ranks make fewer updates: where that cost accuracy, one sentence per strategy."""
        rows: dict[str, list[Run]] = {}
        for run in measured(self.runs):
            if run.batch_per_rank not in (None, run.batch_size) and self.lost_accuracy(run):
                rows.setdefault(family(run), []).append(run)
        return [
            f"Larger batches mean fewer updates: {name} ends at "
            + joined([f"{percent(accuracy(run) or 0.0, 1)} with {run.batch_size}" for run in found])
            + f", one process at {percent(self.accuracies(found[0])[1], 1)}."
            for name, found in rows.items()
        ]

    def accuracy_noise(self, run: Run) -> str | None:
        """A difference that looks like one, and is what another seed would bring as well."""
        reached, reference, noise = self.accuracies(run)
        if not LOST_ACCURACY < abs(reference - reached) <= noise:
            return None
        return (
            f"The test accuracies of {self.name(run)} ({percent(reached, 1)}) and one process ({percent(reference, 1)}) "
            f"differ by no more than noise: {_samples(run):,} test samples cannot show less than {100 * noise:.1f} points."
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
            f"Under {joined([self.name(run) for run in found])}, {who} is slow in `{phase}`{_lags(found)}."
            for (who, phase), found in cases.items()
        ]

    def broken(self, status: str, verb: str) -> list[str]:
        found = [run for run in self.runs if run.status == status]
        reasons = {run.reason: [self.name(one) for one in found if one.reason == run.reason] for run in found}
        return [
            f"{joined(names)} {verb if len(names) == 1 else verb.replace('was', 'were')}"
            f"{': ' + _of_it(first_line(reason), names) if reason else ''}."
            for reason, names in reasons.items()
        ]

    def much_slower(self) -> list[str]:
        """The slowest strategy, when it is much slower than the fastest row, with the phase that it loses its time in."""
        if not self.strategies or any(map(is_script, self.runs)) or not self.rows.comparable:
            return []
        best = {family(run): run for run in reversed(self.strategies)}.values()  # each with its fastest ranks
        slowest, rival = min(best, key=lambda run: speed(run) or 0.0), self.ranking[0]
        ratio, why = speedup(rival, slowest), self.why_slow(slowest, rival)
        if ratio is None or ratio < MUCH_SLOWER or relation(rival, slowest) != "faster":
            return []
        if rival.strategy == "single" and len(best) == 1:  # the verdict has told how much slower
            return [f"{self.name(slowest)} is slow mostly {why}."] if why else []
        fastest = process(rival) if rival.strategy == "single" else self.name(rival)
        return [f"{self.name(slowest)} is {times(ratio)} slower than {fastest}{', mostly ' + why if why else ''}."]

    def why_slow(self, run: Run, rival: Run) -> str | None:
        """The phase that takes more than it takes in one process; without such a row, than in the fastest."""
        singles = baselines(run, self.runs)
        over = next((single for single in singles if single.threads == run.threads), singles[0] if singles else rival)
        found = largest_excess(run, over)
        if found is None:
            return None
        if found.ratio is None:
            return f"because of `{found.phase}` ({percent(found.share)} of its step)"
        other = "one process" if over.strategy == "single" else self.name(over)
        what = "core" if kind(run) == "cpu" else "device"
        return f"because `{found.phase}` takes {times(found.ratio)} as much {what} time per sample as in {other}"


def _threads(run: Run) -> int:
    return run.threads or 0


def _samples(run: Run) -> int:
    return int((run.test or {}).get("samples") or 0)


def _of_it(reason: str, names: Sequence[str]) -> str:
    """A refusal names its strategy first: where the sentence has just named it, `it` will do."""
    name = names[0].split(":")[0].split(" ")[0]
    return f"it {reason.removeprefix(f'{name} ')}" if len(names) == 1 and reason.startswith(f"{name} ") else reason


def _lags(runs: Sequence[Run]) -> str:
    lags = [value for run in runs if (value := number((run.slow_rank or {}).get("behind_ms"))) is not None]
    if not lags:
        return ""
    ends = dict.fromkeys((f"{min(lags):.1f}", f"{max(lags):.1f}"))
    return f" ({' to '.join(ends)} ms per step behind)"
