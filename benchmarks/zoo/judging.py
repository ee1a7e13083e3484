"""Judging answers: was the cause named, and the rank; did the promised gain come; and the table of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .asking import Answer

NO_ANSWER, NO_VERDICT = "no answer", "no verdict"
GAIN_WITHIN = 0.3  # a promised gain is kept where the obtained one differs by no more than this share of it


@dataclass(frozen=True)
class Verdict:
    """One answer against what was planted."""

    answer: Answer
    expected: str
    named: str  # NO_ANSWER where there was none, NO_VERDICT where the tool says that it cannot tell
    rank_right: bool | None  # None: no rank is to blame
    promised: float | None
    obtained: float | None

    @property
    def right(self) -> bool:
        if (
            self.answer.healthy and self.named == NO_VERDICT
        ):  # on a machine that is too busy: no alarm, and no false one
            return True
        return self.named == self.expected and self.rank_right is not False

    @property
    def kept(self) -> bool | None:
        """Whether the promised gain came; None where none was promised or tried."""
        if self.promised is None or self.obtained is None:
            return None
        return abs(self.obtained / self.promised - 1) <= GAIN_WITHIN

    def line(self) -> str:
        """For the terminal, within 80 columns."""
        side = "healthy" if self.answer.healthy else "planted"
        mark = "ok" if self.right else "WRONG"
        parts = [f"{mark:<5} {self.answer.plant.name[:22]:<22} {side:<7} {self.named[:14]:<14}"]
        if self.rank_right is not None:
            parts.append(f"rank {'ok' if self.rank_right else 'WRONG'}")
        if self.promised is not None:
            obtained = "" if self.obtained is None else f" got {self.obtained:.2f}x"
            parts.append(f"{self.promised:.2f}x{obtained}")
        parts.append(f"{self.answer.seconds:.0f} s")
        line = "  ".join(parts)
        if self.named == NO_ANSWER:
            line += f"\n      {self.answer.error[:74]}"
        elif not self.right and not self.answer.healthy:
            line += f"\n      expected {self.expected}" + _blamed(self.answer.plant.rank)
        return line


def _blamed(rank: int | None) -> str:
    return "" if rank is None else f", rank {rank}"


def judge(answer: Answer) -> Verdict:
    expected = "none" if answer.healthy else answer.plant.cause
    said = answer.said
    if said is None or answer.code not in (0, 1):
        return Verdict(answer, expected, NO_ANSWER, None, None, None)
    if answer.plant.kind == "correctness":
        return Verdict(answer, expected, _cause(said, expected), None, None, None)
    rank = None if answer.healthy else answer.plant.rank
    applied = said.get("applied") or {}
    first = (said.get("advice") or [{}])[0]
    return Verdict(
        answer,
        expected,
        str(said.get("bottleneck") or NO_VERDICT),
        None if rank is None else said.get("rank") == rank,
        applied.get("promised") or first.get("speedup"),
        applied.get("speedup"),
    )


def _cause(said: dict[str, Any], expected: str) -> str:
    """The cause that a `verify` names, of a strategy that is not equal or is so but for rounding, else what it finds wrong
    with the task."""
    rows = [row for row in said.get("results", ()) if row.get("cause") or not row.get("equal")]
    causes = [str(row.get("cause") or "unknown") for row in rows]
    causes += [str(finding.get("name")) for finding in said.get("findings", ())]
    return expected if expected in causes else (causes or ["none"])[0]


def show(verdicts: Sequence[Verdict]) -> None:
    """The confusion table, and how much was right."""
    pairs = Counter((verdict.expected, verdict.named) for verdict in verdicts)
    wrong = {(verdict.expected, verdict.named) for verdict in verdicts if not verdict.right}
    print("\nexpected        named           answers")
    for (expected, named), count in sorted(pairs.items(), key=lambda item: (item[0][0], -item[1])):
        print(f"{expected:<15} {named:<15} {count:>7}{'   <-' if (expected, named) in wrong else ''}")
    planted = [verdict for verdict in verdicts if not verdict.answer.healthy]
    healthy = [verdict for verdict in verdicts if verdict.answer.healthy]
    for side, those in (("planted", planted), ("healthy", healthy)):
        if those:
            print(f"{side}: {sum(verdict.right for verdict in those)} of {len(those)} right")
    tried = [verdict for verdict in verdicts if verdict.kept is not None]
    if tried:
        kept = sum(bool(verdict.kept) for verdict in tried)
        print(f"gains: {kept} of {len(tried)} within {100 * GAIN_WITHIN:.0f} % of what was promised")
