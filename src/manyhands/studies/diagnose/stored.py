"""diagnose_run(): what the record of a run alone tells of its bottleneck. Nothing is measured, so no gain is promised."""

from __future__ import annotations

import shlex
from typing import Any

from ...record.hints import hints
from ...record.run import Run


def diagnose_run(run: Run) -> dict[str, Any]:
    """The document of `manyhands diagnose`, with what the record shows and without experiments."""
    found, phases = hints(run), [value for value in (run.phases_ms or {}).values() if value is not None]
    first = found[0] if found else None
    slow = run.slow_rank if first is not None and first.bottleneck == "straggler" else None
    return {
        "bottleneck": first.bottleneck if first else "none",
        "rank": slow.get("rank") if slow else None,
        "cost_ms": first.cost_ms if first else None,
        "step_ms": sum(phases) if phases else None,
        "experiments": [],
        "advice": [{"change": hint.sentence, "speedup": None, "command": hint.command} for hint in found],
        "not_tried": [{"change": "all experiments", "reason": "a stored record cannot be run again by itself"}],
        "others_cores": None,
        "verdict": _verdict(run, [hint.sentence for hint in found]),
    }


def _verdict(run: Run, sentences: list[str]) -> str:
    command = shlex.join(["manyhands", "diagnose", run.source or run.task, run.label, *_ranks(run)])
    measure = f"`{command}` measures what a change gains."
    if run.strategy == "script":
        measure = "what a change gains is measured for tasks (docs/port.md makes one of a script)."
    if run.status not in ("done", "stopped") or not run.phases_ms:
        return f"The run {run.status} and its record holds no figures of steps; {measure}"
    told = sentences[0] if sentences else "Nothing in the record stands out."
    return f"{told} A record alone cannot tell more; {measure}"


def _ranks(run: Run) -> list[str]:
    return ["--ranks", str(run.ranks)] if (run.ranks or 1) > 1 else []
