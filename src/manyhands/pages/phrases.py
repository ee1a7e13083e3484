"""How figures and lists read in a sentence: 1.8x, two ranks, ddp and hogwild."""

from __future__ import annotations

from collections.abc import Sequence

from ..record.run import Run
from .figures import kind

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def process(run: Run) -> str:
    if kind(run) != "cpu":
        return "one process on one GPU" if kind(run) == "cuda" else f"one process on {kind(run)}"
    return f"one process with {amount(run.threads, 'thread')}" if run.threads else "one process"


def times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:,.0f}x"


def amount(value: int | None, noun: str) -> str:
    spelt = _NUMBERS[value] if value is not None and 0 <= value < len(_NUMBERS) else str(value)
    return f"{spelt} {noun}" if value == 1 else f"{spelt} {noun}s"


def joined(parts: Sequence[str], last: str = "and") -> str:
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}" if len(parts) > 1 else "".join(parts)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def small(text: str) -> str:
    return text[:1].lower() + text[1:]


def first_line(text: object, limit: int = 160) -> str:
    line = next(iter(str(text).strip().splitlines()), "").rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"
