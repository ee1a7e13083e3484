"""The verdict on Hogwild: does the speed-up reach what was published, and are turns as fast where gradients are long?"""

from __future__ import annotations

import re

from ...intervals import Interval
from ..experiment import Verdict
from ..table import Table

ENOUGH_RANKS = 10  # the published speed-ups are of 10 to 12 cores,
LEAST_SPEEDUP = 3.0  # and this is the smallest of them
LONG_MS, AS_FAST = 1.0, 0.9  # turns count as fast where they lose less than a tenth


def judge(table: Table) -> Verdict:
    most = most_ranks(table)
    free = table[f"sparse, free, {most}"].figures.get("speedup") if f"sparse, free, {most}" in table else None
    rows = work_rows(table)
    if not free or not rows:
        return Verdict(None, "No figures of Hogwild were measured.", _missing(table))
    scaled, scaled_why = _scaled(min(free), max(free), most)
    turns, turns_why = _turns([row for row in rows if row[0] == most])
    holds = False if False in (scaled, turns) else None if None in (scaled, turns) else True
    return Verdict(holds, _measured(table, most), f"{scaled_why}; {turns_why}.")


def _missing(table: Table) -> str:
    problem = next((row.problem for row in table if row.problem), None)
    return f"{problem.rstrip('.')}." if problem else "a row of the table is missing."


def _scaled(low: float, high: float, ranks: int) -> tuple[bool | None, str]:
    if ranks < ENOUGH_RANKS:
        return (
            None,
            f"the published speed-ups are of 10 to 12 cores, and {ranks} processes are what this machine has room for",
        )
    if low >= LEAST_SPEEDUP:
        return True, f"the speed-up of {ranks} processes is {LEAST_SPEEDUP:.0f}x or more with every seed"
    if high < LEAST_SPEEDUP:
        return False, f"{ranks} processes stay below {LEAST_SPEEDUP:.0f}x with every seed"
    return None, f"{ranks} processes reach {LEAST_SPEEDUP:.0f}x with some seeds and not with others"


def _turns(rows: list[tuple[int, float, Interval]]) -> tuple[bool | None, str]:
    long = [(ms, ratio) for _, ms, ratio in rows if ms >= LONG_MS]
    if not long:
        return None, "no gradient took 1 ms or longer, so turns cannot be judged"
    ms, worst = min(long, key=lambda one: one[1].high)
    if all(ratio.low >= AS_FAST for _, ratio in long):
        return True, f"turns lose less than {1 - AS_FAST:.0%} wherever a gradient takes 1 ms or longer"
    if worst.high < AS_FAST:
        return False, (
            f"turns are not as fast with gradients of {ms:.1f} ms ({worst.middle:.0%} of the speed without a lock): "
            "a round ends only when the slowest process is done"
        )
    return None, "whether turns are as fast from 1 ms on differs from seed to seed"


def _measured(table: Table, most: int) -> str:
    said = []
    for problem in ("sparse", "dense"):
        times = {way: table[label].figure("speedup") for way, label in _labels(problem, most) if label in table}
        known = [f"{value:.1f}x {way}" for way, value in times.items() if value is not None]
        if known:
            said.append(f"{', '.join(known)} on the {problem} problem")
    ratios = sorted((ms, ratio.middle) for ranks, ms, ratio in work_rows(table) if ranks == most)
    turned = ", ".join(f"{ratio:.0%} at {ms:.1f} ms" for ms, ratio in ratios)
    return (
        f"the speed-up of {most} processes, each on one core, over one is {'; '.join(said)}. "
        f"Turns reach this much of the speed without a lock, by the time a gradient takes: {turned}.{_accuracy(table, most)}"
    )


def _labels(problem: str, most: int) -> list[tuple[str, str]]:
    words = {"free": "without a lock", "locked": "with one", "in turns": "in turns"}
    return [(words[way], f"{problem}, {way}, {most}") for way in words]


def _accuracy(table: Table, most: int) -> str:
    if "sparse, 1 process" not in table:
        return ""
    one, free = table["sparse, 1 process"].figure("accuracy"), table[f"sparse, free, {most}"]
    many, stale = free.figure("accuracy"), free.figure("staleness")
    if one is None or many is None or stale is None:
        return ""
    return (
        f" Accuracy without a lock is {many:.1%} on the sparse problem, with {stale:.1f} updates of others between "
        f"reading and writing; one process reaches {one:.1%}."
    )


def most_ranks(table: Table) -> int:
    return max(
        (int(row.label.rpartition(", ")[2]) for row in table if row.label.startswith("sparse, free, ")), default=1
    )


def work_rows(table: Table) -> list[tuple[int, float, Interval]]:
    """Of every pair of rows: processes, how long a gradient took without a lock, the speed of turns as a part of free."""
    found = []
    for row in table:
        match = re.fullmatch(r"(dense x\d+), free, (\d+)", row.label)
        if match:
            ratio = table.ratio("speed", f"{match[1]}, in turns, {match[2]}", row.label)
            ms = row.figure("gradient")
            if ratio is not None and ms is not None:
                found.append((int(match[2]), ms, ratio))
    return found
