"""The schedules of a script: how often they are stepped, and after how many calls they are through."""

from __future__ import annotations

from typing import Any

from .hooks import kinds_of

LONGEST = 5000  # calls of a schedule that are looked at
LENGTHS = ("total_steps", "T_max", "total_iters", "max_iters")


class Rates:
    """Calls of outermost schedules: one that is made of others steps them itself."""

    def __init__(self, witness: Any):
        from torch.optim import lr_scheduler

        self.calls = 0
        self._inside = 0
        self._made: list[Any] = []
        base = lr_scheduler.LRScheduler
        for kind in (base, *kinds_of(base)):
            if "step" in vars(kind):
                witness.patches.wrap(kind, "step", self._stepping)
            if "__init__" in vars(kind):
                witness.patches.wrap(kind, "__init__", self._making)

    def _stepping(self, original: Any) -> Any:
        def step(schedule: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.calls += not self._inside
            self._inside += 1
            try:
                return original(schedule, *args, **kwargs)
            finally:
                self._inside -= 1

        return step

    def _making(self, original: Any) -> Any:
        def make(schedule: Any, /, *args: Any, **kwargs: Any) -> None:
            outermost = not self._inside
            self._inside += 1
            try:
                original(schedule, *args, **kwargs)
            finally:
                self._inside -= 1
            if outermost:
                self._made.append(schedule)

        return make

    def facts(self) -> dict[str, Any]:
        return {"schedule_calls": self.calls, "schedules": [_described(one) for one in self._made]}


def _described(schedule: Any) -> dict[str, Any]:
    lengths = [getattr(schedule, name, None) for name in LENGTHS]
    ends = next((one for one in lengths if isinstance(one, int) and one > 0), None)
    return {"kind": type(schedule).__name__, "ends": ends or _runs_out(getattr(schedule, "lr_lambdas", [None])[0])}


def _runs_out(rate: Any) -> int | None:
    """After how many calls a function of one's own has taken the rate to nothing."""
    most = 0.0
    try:
        for call in range(LONGEST):
            now = float(rate(call))
            most = max(most, now)
            if call and now <= most / 1000:
                return call
    except Exception:  # there is none, or it wants something else
        return None
    return None
