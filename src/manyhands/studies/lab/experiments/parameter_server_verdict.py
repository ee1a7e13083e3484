"""The verdict on one slow worker: who is held up by it, and by how much."""

from __future__ import annotations

from collections.abc import Iterable

from ...intervals import Interval
from ..experiment import Verdict
from ..table import Table

TARGET = 0.85  # the test accuracy whose time counts
MODES = ("sync", "bounded", "async")
SITUATIONS = ("all alike", "one slow", "one pauses")
HELD_UP = 1.2  # times as long: a worker counts as holding the others up,
FASTER = 1.1  # and a mode as faster
TOLERATED = 0.9  # that much faster than sync, or slower than async, still counts as between


def judge(table: Table) -> Verdict:
    missing = [label for label in _labels() if label not in table or not table[label].figures.get("target")]
    if missing:
        problem = table[missing[0]].problem if missing[0] in table else None
        why = (problem or f'"{missing[0]}" never reached {TARGET:.0%}, or was not measured').rstrip(".")
        return Verdict(
            None, f"{len(_labels()) - len(missing)} of {len(_labels())} rows reached {TARGET:.0%}.", f"{why}."
        )
    found = [_held_up(table), _goes_on(table), _between(table)]
    holds = _all(answer for answer, _ in found)
    reasons = [why for answer, why in found if answer is holds]
    return Verdict(holds, _measured(table), f"{'; '.join(reasons)}.")


def _labels() -> list[str]:
    return [f"{mode}, {situation}" for situation in SITUATIONS for mode in MODES]


def _ratio(table: Table, above: str, below: str) -> Interval:
    """How many times as long the one takes to the target as the other."""
    found = table.ratio("target", above, below)
    assert found is not None  # of rows that have figures
    return found


def _told(ratio: Interval, least: float) -> bool | None:
    """Every seed, no seed, or some."""
    return True if ratio.low >= least else False if ratio.high < least else None


def _held_up(table: Table) -> tuple[bool | None, str]:
    answer = _told(_ratio(table, "sync, one slow", "sync, all alike"), HELD_UP)
    words = {
        True: "with synchronous updates every step waits for the slow worker",
        False: "with synchronous updates the slow worker hardly costs time",
        None: "whether the slow worker holds synchronous updates up differs from seed to seed",
    }
    return answer, words[answer]


def _goes_on(table: Table) -> tuple[bool | None, str]:
    answer = _told(_ratio(table, "sync, one slow", "async, one slow"), FASTER)
    words = {
        True: "with asynchronous ones the others make its share of the work",
        False: "asynchronous updates are no faster than synchronous ones beside a slow worker",
        None: "whether asynchronous updates are faster beside a slow worker differs from seed to seed",
    }
    return answer, words[answer]


def _between(table: Table) -> tuple[bool | None, str]:
    answers = {}
    for situation in SITUATIONS[1:]:
        over = _told(_ratio(table, f"sync, {situation}", f"bounded, {situation}"), TOLERATED)
        under = _told(_ratio(table, f"bounded, {situation}", f"async, {situation}"), TOLERATED)
        answers[situation] = _all((over, under))
    answer = _all(answers.values())
    where = " and ".join(situation for situation, found in answers.items() if found is answer)
    words = {
        True: "bounded staleness stays between the two: once a worker is as far behind as the bound allows, all go at its pace",
        False: f"bounded staleness is not between the two ({where})",
        None: f"whether bounded staleness is between the two differs from seed to seed ({where})",
    }
    return answer, words[answer]


def _all(answers: Iterable[bool | None]) -> bool | None:
    """False where one is, else unknown where one is."""
    known = set(answers)
    return False if False in known else None if None in known else True


def _measured(table: Table) -> str:
    said = []
    for mode in MODES:
        alike = table[f"{mode}, all alike"].figure("target")
        longer = [_ratio(table, f"{mode}, {situation}", f"{mode}, all alike") for situation in SITUATIONS[1:]]
        said.append(
            f"{mode} takes {alike:.1f} s to {TARGET:.0%}, "
            f"{_times(longer[0])} that with one slow worker and {_times(longer[1])} with one that pauses"
        )
    gain = [_ratio(table, f"sync, {situation}", f"async, {situation}") for situation in SITUATIONS[1:]]
    return (
        f"{'; '.join(said)}. Beside the slow worker async is {_times(gain[0])} as fast as sync, beside the one that "
        f"pauses {_times(gain[1])}.{_price(table)}"
    )


def _times(ratio: Interval) -> str:
    return f"{ratio.middle:.1f}x ({ratio.low:.1f} to {ratio.high:.1f})"


def _price(table: Table) -> str:
    figures = {
        mode: (table[f"{mode}, one slow"].figure("staleness"), table[f"{mode}, one slow"].figure("accuracy"))
        for mode in MODES
    }
    late, bounded, best = figures["async"], figures["bounded"], figures["sync"]
    if None in (*late, *bounded, best[1]):
        return ""
    return (
        f" Async gradients are {late[0]:.1f} updates old there and bounded ones {bounded[0]:.1f}; the accuracy at the end "
        f"is {late[1]:.1%} and {bounded[1]:.1%}, that of sync {best[1]:.1%}."
    )
