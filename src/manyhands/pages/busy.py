"""The machine was busy: what other processes used of its cores while rows were measured, in a sentence that comes first."""

from __future__ import annotations

from collections.abc import Sequence

from ..record.run import Run
from .comparing import measured, names
from .figures import taken_share
from .phrases import joined


def busy_sentence(runs: Sequence[Run]) -> str | None:
    """What others used, and what that means for all that follows; None where the machine was quiet, or nobody knows."""
    called = {id(run): name for run, name in zip(runs, names(runs), strict=True)}
    rows = [run for run in measured(runs) if taken_share(run)]
    if not rows:
        return None
    worst = max(rows, key=lambda run: run.others_cores or 0.0)
    cores = int((worst.environment or {}).get("cores") or 1)
    what = "this was" if len(rows) == len(measured(runs)) else _were([called[id(run)] for run in rows])
    return (
        f"Other processes used {worst.others_cores:.1f} of {cores} core{'s' * (cores != 1)} while {what} measured: "
        "speeds, and which row is fastest, may be different on a quiet machine."
    )


def _were(found: Sequence[str]) -> str:
    return f"{joined(found)} {'was' if len(found) == 1 else 'were'}"
