"""Conclusions in words: one or two sentences that follow from the figures, and no more than those allow.

A difference inside the spread of the rounds is called "as fast as"; the row of one process with all cores is
asked before any strategy is praised, because a gain that more threads bring as well is not the strategy's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..record.run import Run
from ..record.slow_rank import slow_one
from .figures import (
    accuracy,
    baselines,
    efficiency,
    kind,
    largest_phase,
    measured,
    names,
    number,
    percent,
    relation,
    setting,
    speed,
    speeds,
    speedup,
    spread,
    surely_same,
    table,
)

__all__ = [
    "conclusion",
    "efficiency",
    "largest_phase",
    "remarks",
    "speedup",
    "spread",
    "table",
    "verdict",
]

LOST_ACCURACY = 0.005  # a test accuracy lower by more than this is worth a sentence
MORE_ROUNDS = 9  # where a comparison had none or one
MUCH_SLOWER = 1.5  # so is a strategy this many times slower than the fastest
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def conclusion(runs: Sequence[Run]) -> str:
    """The verdict on speed, and the remark that matters most beside it."""
    return " ".join([verdict(runs), *remarks(runs)][:2])


# -- the verdict ------------------------------------------------------------------------------------------------


def verdict(runs: Sequence[Run]) -> str:
    """One sentence: which run is fastest, and whether that is the strategy's doing."""
    text = _verdict(runs)
    return "One" + text[3:] if text.startswith("one process") else text  # names of strategies stay as they are


def _verdict(runs: Sequence[Run]) -> str:
    called = dict(zip(map(id, runs), names(runs), strict=True))
    ranking = sorted(measured(runs), key=lambda run: -(speed(run) or 0))
    if not ranking:
        return "No run was measured to its end, so there is nothing to compare."
    if len(ranking) == 1:
        return _alone(ranking[0], called)
    if len({setting(run) for run in ranking}) > 1:
        return _incomparable(ranking)
    strategies = [run for run in ranking if run.strategy != "single"]
    if not strategies:
        return _among_equals(ranking, {id(run): process(run) for run in ranking} if _differ(ranking) else called)
    best = strategies[0]
    if not baselines(best, runs):
        return _among_equals(
            strategies, called, doubt="without a `single` baseline it is impossible to say whether parallelism helps"
        )
    tied = [run for run in strategies if run is best or relation(run, best) == "same"]
    return _against_oneprocess(tied, called, baselines(best, runs))


def _alone(run: Run, called: dict[int, str]) -> str:
    text = f"{called[id(run)]} trains {speed(run):,.0f} samples/s on {_amount(run.ranks, 'rank')}"
    largest = largest_phase(run)
    return f"{text}; {percent(largest[1])} of its step is {largest[0]}." if largest else f"{text}."


def _incomparable(ranking: Sequence[Run]) -> str:
    parts = [
        f"{noun} ({_join([str(value) for value in values])})"
        for noun, position in (("task", 0), ("batch size", 1))
        if len(values := list(dict.fromkeys(setting(run)[position] for run in ranking))) > 1
    ]
    if len({setting(run)[2:] for run in ranking}) > 1:
        parts.append("machine")
    return f"These runs differ in {_join(parts)}, so their speeds are not compared."


def _among_equals(ranking: Sequence[Run], called: dict[int, str], doubt: str | None = None) -> str:
    """The fastest against the next: all there is to say without one process to measure against."""
    best = ranking[0]
    tied = [run for run in ranking if run is best or relation(run, best) == "same"]
    rest = [run for run in ranking if run is not best and relation(run, best) != "same"]
    if len(ranking) == 1:
        text = _alone(best, called)[:-1]
    elif len(tied) > 1:
        text = f"{_join([called[id(run)] for run in tied])} are equally fast"
        text += f", {_faster(best, rest[0])} than {called[id(rest[0])]}" if rest else ""
    else:
        text = f"{called[id(best)]} is {_faster(best, rest[0])} than {called[id(rest[0])]}"
        text += ", the next" if len(rest) > 1 else ""
    return f"{text}; {doubt}." if doubt else f"{text}."


def _against_oneprocess(tied: Sequence[Run], called: dict[int, str], singles: Sequence[Run]) -> str:
    """The fastest strategy, and those that cannot be told from it, against one process with a rank's threads and with all.

    Rows with a wide spread are the same as many; only those that stand as the fastest does are spoken of with it.
    """
    best = tied[0]
    base = next((single for single in singles if single.threads == best.threads), singles[0])
    wide: Run | None = singles[-1]
    if wide is base or kind(best) != "cpu":
        wide = None
    against_base, against_wide = relation(best, base), relation(best, wide) if wide else None
    tied = [
        run
        for run in tied
        if relation(run, base) == against_base and (wide is None or relation(run, wide) == against_wide)
    ]
    tied_names = [called[id(run)] for run in tied]
    who, verb = _join(tied_names), "is" if len(tied) == 1 else "are"

    if against_base == "faster":
        text = f"{who} {verb} {_faster(tied, base)} than {process(base)}"
        if wide is None:
            return f"{text}."
        if against_wide == "faster":
            return f"{text} and {_faster(tied, wide)} than {process(wide)}."
        if against_wide == "same":
            if not all(surely_same(run, wide) for run in tied):
                return f"{text}, but {_untold(wide, who, rounds=len(speeds(wide)))}."
            gain = _further_cores(base, wide)
            return f"{text}, but {process(wide)} is as fast: the gain is {gain}, not {_join(tied_names, 'or')}."
        return (
            f"{text}, but {process(wide)} is {_faster(wide, tied)} still: "
            "here threads use the cores better than ranks do."
        )
    if wide is not None and against_wide == "slower" and relation(wide, base) == "faster":
        standing = "only as fast as" if against_base == "same" else "slower even than"
        return f"{process(wide)} is {_faster(wide, tied)} than {who}, which {verb} {standing} {process(base)}."
    if against_base == "same":
        return f"{who} {verb} only as fast as {process(base)}: more ranks gain nothing here."
    return (
        f"{process(base)} is {_faster(base, tied)} than {who}: "
        "on this machine, parallel training costs more than it saves."
    )


# -- remarks ----------------------------------------------------------------------------------------------------


def remarks(runs: Sequence[Run]) -> list[str]:
    """Everything else worth a sentence, what matters most first."""
    called = dict(zip(map(id, runs), names(runs), strict=True))
    lost = [(run, sentence) for run in measured(runs) if (sentence := _lost_accuracy(run, runs, called))]
    fastest = max(measured(runs), key=lambda run: speed(run) or 0, default=None)
    return [
        *(sentence for run, sentence in lost if run is fastest),
        *_slow_ranks(runs, called),
        *_broken(runs, called, "failed"),
        *(sentence for run, sentence in lost if run is not fastest),
        *_much_slower(runs, called),
        *_broken(runs, called, "stopped"),
        *_broken(runs, called, "refused"),
    ]


def _lost_accuracy(run: Run, runs: Sequence[Run], called: dict[int, str]) -> str | None:
    reached = accuracy(run)
    references = [value for single in baselines(run, runs) if (value := accuracy(single)) is not None]
    if run.strategy == "single" or reached is None or not references:
        return None
    lost = min(references) - reached
    if lost <= LOST_ACCURACY:
        return None
    return (
        f"{called[id(run)]} ends {100 * lost:.1f} points of test accuracy below one process "
        f"({percent(reached, 1)} against {percent(min(references), 1)})."
    )


def _slow_ranks(runs: Sequence[Run], called: dict[int, str]) -> list[str]:
    """A sentence for every rank (or server) and phase that is slow, with the strategies under which it is."""
    cases: dict[tuple[str, object], list[Run]] = {}
    for run in runs:
        if run.slow_rank:
            cases.setdefault((slow_one(run.slow_rank), run.slow_rank.get("phase")), []).append(run)
    return [
        f"Under {_join([called[id(run)] for run in found])}, {who} is slow in `{phase}`{_lags(found)}."
        for (who, phase), found in cases.items()
    ]


def _lags(runs: Sequence[Run]) -> str:
    lags = [value for run in runs if (value := number((run.slow_rank or {}).get("behind_ms"))) is not None]
    if not lags:
        return ""
    low, high = f"{min(lags):.1f}", f"{max(lags):.1f}"
    return f" ({low} ms per step behind)" if low == high else f" ({low} to {high} ms per step behind)"


def _broken(runs: Sequence[Run], called: dict[int, str], status: str) -> list[str]:
    verb = {"failed": "failed", "stopped": "was stopped", "refused": "was refused"}[status]
    sentences = []
    for run in runs:
        if run.status == status:
            reason = ": " + _first_line(run.reason) if run.reason else ""
            sentences.append(f"{called[id(run)]} {verb}{reason}.")
    return sentences


def _much_slower(runs: Sequence[Run], called: dict[int, str]) -> list[str]:
    """The slowest strategy, when it is much slower than the fastest run, with the phase that takes its time."""
    ranking = sorted(measured(runs), key=lambda run: speed(run) or 0)
    strategies = [run for run in ranking if run.strategy != "single"]
    if not strategies or len({setting(run) for run in ranking}) > 1:
        return []
    slowest = strategies[0]
    rival = strategies[-1] if len(strategies) > 1 else ranking[-1]
    ratio, largest = speedup(rival, slowest), largest_phase(slowest)
    if ratio is None or ratio < MUCH_SLOWER or relation(rival, slowest) != "faster":
        return []
    why = f"spends {percent(largest[1])} of its step in {largest[0]}" if largest else ""
    if rival.strategy == "single":  # the verdict has told how much slower
        return [f"{called[id(slowest)]} {why}."] if why else []
    text = f"{called[id(slowest)]} is {_times(ratio)} slower than {called[id(rival)]}"
    return [f"{text} and {why}." if why else f"{text}."]


# -- phrases ----------------------------------------------------------------------------------------------------


def process(run: Run) -> str:
    if kind(run) != "cpu":
        return "one process on one GPU" if kind(run) == "cuda" else f"one process on {kind(run)}"
    return f"one process with {_amount(run.threads, 'thread')}" if run.threads else "one process"


def _differ(runs: Sequence[Run]) -> bool:
    phrases = [process(run) for run in runs]
    return len(set(phrases)) == len(phrases)


def _further_cores(base: Run, wide: Run) -> str:
    more = (wide.threads or 0) - (base.threads or 0)
    if (base.threads, more) == (1, 1):
        return "the second core"
    return f"the other {_amount(more, 'core')}" if base.threads and more > 1 else "the further threads"


def _untold(run: Run, who: str, rounds: int) -> str:
    """That no difference was found, and how to look harder."""
    if rounds < 2:
        return f"{process(run)} could not be told apart from {who}; try --rounds {MORE_ROUNDS}"
    return f"{process(run)} could not be told apart from {who} in {rounds} rounds; try --rounds {3 * rounds}"


def _faster(one: Run | Sequence[Run], other: Run | Sequence[Run]) -> str:
    """How much faster; about how much, or from how much to how much, where there are several on a side."""
    ones, others = ([side] if isinstance(side, Run) else side for side in (one, other))
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


def _first_line(text: object, limit: int = 160) -> str:
    line = next(iter(str(text).strip().splitlines()), "").rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"
