"""One line of the doctor's: what was looked at, how it stands, and what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """`status` is ok, warning or problem; what is ok needs no advice."""

    name: str
    status: str
    message: str
    advice: str | None = None


def ok(name: str, message: str) -> Check:
    return Check(name, "ok", message)


def warning(name: str, message: str, advice: str) -> Check:
    return Check(name, "warning", message, advice)


def problem(name: str, message: str, advice: str | None = None) -> Check:
    return Check(name, "problem", message, advice)


def from_error(name: str, error: Exception) -> Check:
    """A refusal of ours: what is wrong stands before the last semicolon, what to do after it."""
    text = str(error).splitlines()[0]
    message, found, advice = text.rpartition("; ")
    return problem(name, message, advice) if found else problem(name, text)


def size(count: float) -> str:
    """Bytes in words."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6)):
        if count >= bytes_ or unit == "MB":
            return f"{count / bytes_:.1f} {unit}" if count < 100 * bytes_ else f"{count / bytes_:.0f} {unit}"
    return f"{count:.0f} bytes"


def amount(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"
