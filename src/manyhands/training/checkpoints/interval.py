"""How often checkpoints are written: every so many steps, or seconds."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import BadInput

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Interval:
    """Between checkpoints: a number of steps, or seconds."""

    steps: int | None = None
    seconds: float | None = None


def interval(spec: int | str | None) -> Interval | None:
    """`200` (steps), `"30s"`, `"10m"` or `"1h"`."""
    if spec is None:
        return None
    text = str(spec).strip().lower()
    if not isinstance(spec, bool) and isinstance(spec, int | str):
        if text.isdecimal() and int(text) > 0:
            return Interval(steps=int(text))
        try:
            seconds = float(text[:-1]) * _UNITS[text[-1:]]
            if 0 < seconds < float("inf"):
                return Interval(seconds=seconds)
        except (KeyError, ValueError):
            pass
    raise BadInput(f"checkpoint_every must be a number of steps (200) or a time (30s, 10m, 1h) (found {spec!r})")
