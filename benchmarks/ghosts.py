"""Claim: comparisons of one task say the same again, name no slow rank where none is, and notice a busy machine.

The same comparison again and again through the command line, every second one beside a process that burns one core. Of
each is printed its verdict and

    same       whether its verdict is, figures aside, that of most comparisons
    reversed   pairs of rows of which it says that one is faster where most of those that can tell say the other is
    unclear    pairs of rows that it cannot tell apart
    ghosts     ranks or servers it calls slow; in the built-in tasks none is
    busy       whether it says that others used the machine, and how many cores they used

    python benchmarks/ghosts.py [--comparisons 10] [--task glyphs] [--ranks 2] [--rounds 3] [--max-steps N] [STRATEGY...]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from tables import show

from manyhands.pages import busy_sentence
from manyhands.pages.comparing import measured, names, relation
from manyhands.pages.words import verdict
from manyhands.record.run import Run
from manyhands.record.slow_rank import slow_name

FIGURES = re.compile(r"(about )?\d[\d.,]*x?( to \d[\d.,]*x?)?( %)?")
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # it does not outlive us
Claims = dict[tuple[str, str], str]


@dataclass
class Comparison:
    """What one comparison said."""

    beside: str
    verdict: str
    claims: Claims  # of every pair of rows: faster, slower, same or unclear
    ghosts: list[str]
    others_cores: float | None
    named_busy: bool

    @property
    def standing(self) -> str:
        """The verdict without its figures, and without what follows from it."""
        return FIGURES.sub("#", self.verdict.split(":")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "strategies", nargs="*", metavar="STRATEGY", help="default: those that compare takes by default"
    )
    parser.add_argument("--comparisons", type=int, default=10)
    parser.add_argument("--task", default="glyphs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-steps", type=int)
    options = parser.parse_args()
    words = ["compare", options.task, *options.strategies]
    words += ["--ranks", str(options.ranks), "--rounds", str(options.rounds)]
    words += ["--max-steps", str(options.max_steps)] if options.max_steps else []
    found = []
    for number in range(options.comparisons):
        with beside_burner(number % 2 == 1):
            found.append(judged("burner" if number % 2 else "nothing", compared(words)))
        print(f"{number + 1:>3} beside {found[-1].beside}: {found[-1].verdict}", flush=True)
    show(
        f"{options.comparisons} comparisons of {options.task}, every second one beside a process that burns one core",
        rows_of(found),
        command=" ".join(words),
        same={beside: same_among(found, beside) for beside in ("nothing", "burner")},
        ghosts=sum(len(one.ghosts) for one in found),
        verdicts=[one.verdict for one in found],
    )


@contextmanager
def beside_burner(on: bool) -> Iterator[None]:
    """The comparison must not be its parent, for what a process starts itself is not called a neighbour."""
    if not on:
        yield
        return
    burner = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


def compared(words: Sequence[str]) -> list[Run]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "manyhands", *words, "--run-dir", folder, "--json", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    return [Run.from_record(record) for record in json.loads(done.stdout)["runs"]]


def judged(beside: str, runs: Sequence[Run]) -> Comparison:
    called = {id(run): name for run, name in zip(runs, names(runs), strict=True)}
    pairs = combinations(measured(runs), 2)
    return Comparison(
        beside,
        verdict(runs),
        {(called[id(one)], called[id(two)]): str(relation(one, two)) for one, two in pairs},
        [f"{called[id(run)]}: {slow_name(run.slow_rank)} in {run.slow_rank['phase']}" for run in runs if run.slow_rank],
        max((run.others_cores for run in runs if run.others_cores is not None), default=None),
        busy_sentence(runs) is not None,
    )


def rows_of(found: Sequence[Comparison]) -> list[Mapping[str, Any]]:
    usual, claimed = most([one.standing for one in found]), usual_claims(found)
    return [
        {
            "beside": one.beside,
            "same": "yes" if one.standing == usual else "no",
            "reversed": sum({claim, claimed.get(pair)} == {"faster", "slower"} for pair, claim in one.claims.items()),
            "unclear": sum(claim == "unclear" for claim in one.claims.values()),
            "ghosts": "; ".join(one.ghosts) or "none",
            "busy": "yes" if one.named_busy else "no",
            "others": one.others_cores,
        }
        for one in found
    ]


def usual_claims(found: Sequence[Comparison]) -> Claims:
    """Which of two rows is faster, by most of the comparisons that can tell."""
    pairs = {pair for one in found for pair in one.claims}
    told = {pair: [one.claims[pair] for one in found if one.claims.get(pair) in ("faster", "slower")] for pair in pairs}
    return {pair: most(claims) for pair, claims in told.items() if claims}


def same_among(found: Sequence[Comparison], beside: str) -> str:
    """How many of one kind agree with most of their kind."""
    standings = [one.standing for one in found if one.beside == beside]
    return f"{standings.count(most(standings))} of {len(standings)}" if standings else "0 of 0"


def most(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]


if __name__ == "__main__":
    main()
