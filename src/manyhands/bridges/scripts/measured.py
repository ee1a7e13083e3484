"""From what the ranks of a script have left to its record."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...record.run import PHASES, Run, environment
from ...record.step_losses import StepLosses, as_recorded, together
from ...record.step_times import StepTimes
from ...record.summary import summarise, timeline
from .board import EVALUATION, FIRST, LOSS, SAMPLES, STEPS, TOTALS, UNKNOWN, Board

NEVER_TRAINED = "no optimizer step was seen, so there is nothing to measure"
NEVER_USED_TORCH = "the script never imported torch, so there is nothing to measure"


def fill(run: Run, board: Board, left: Sequence[dict[str, Any]], began: float) -> None:
    """The figures of all ranks in one record. `began`: when the caller started them."""
    figures = [_whole(item, board, rank) for rank, item in enumerate(left)]
    run.environment = environment()
    if not any(item["steps"] for item in figures):
        used = any(item.get("used_torch", True) for item in left)
        unhooked = [problem for item in left for problem in item.get("unhooked", ())]
        run.notes.append(unhooked[0] if unhooked else NEVER_TRAINED if used else NEVER_USED_TORCH)
        return
    for name, value in summarise(figures, run.ranks).items():
        setattr(run, name, value)
    run.device, run.devices = figures[0]["device"].split(":")[0], [item["device"] for item in figures]
    run.threads = figures[0]["threads"]
    run.updates = max(item["updates"] for item in figures)
    run.startup_seconds = max(0.0, board.row(0)[FIRST] / 1e9 - began)
    run.evaluation_seconds = max(item["evaluation"] for item in figures) / 1e9
    run.phases_source = "measured"
    run.accumulate = _accumulated(figures)
    if not all(item["samples_known"] for item in figures):
        run.samples = run.samples_per_second = None
        for row in run.per_rank:
            row["samples"] = None
    else:
        run.batch_size = _batch_size(figures)
    if any(item["losses"] for item in figures):
        losses = together(map(_losses, figures), 0, run.steps)
        run.steps_per_loss, run.losses = losses.each, as_recorded(losses.means())
    _forget_unseen(run, figures)
    run.timeline = timeline(figures)


def _whole(item: dict[str, Any], board: Board, rank: int) -> dict[str, Any]:
    """What a rank has left, or, where it was killed, what the board knows of it."""
    row = board.row(rank)
    if "phases" in item:
        return {**item, "step_times": StepTimes.of_plain(item["step_times"])}
    steps, samples, phases = row[STEPS], row[SAMPLES], list(row[TOTALS : TOTALS + len(PHASES)])
    loss = board.floats(rank)[LOSS]
    return {
        "rank": rank,
        "steps": steps,
        "made": steps,
        "phases": phases,
        "seen": [name for name, value in zip(PHASES, phases, strict=True) if value],
        "samples": max(0, samples),
        "samples_known": samples != UNKNOWN,
        "losses": [(steps - 1, loss, 1, 1.0)] if steps and math.isfinite(loss) else [],
        "marks": [[0] * (len(PHASES) + 3), [*phases, 0, steps, 0]],
        "step_times": StepTimes(),
        "trace": [],
        "counts": [],
        "bytes": 0,
        "overlapped": 0,
        "late": 0,
        "backwards": 0,
        "updates": steps,
        "lockstep": False,
        "repeats": False,
        "extra": {},
        "device": "cpu",
        "host": None,
        "threads": None,
        "peak_memory_bytes": None,
        "evaluation": row[EVALUATION],
    }


def _losses(item: dict[str, Any]) -> StepLosses:
    found = StepLosses()
    for loss in item["losses"]:
        found.note(*loss)
    return found


def _forget_unseen(run: Run, figures: Sequence[dict[str, Any]]) -> None:
    """What no hook could see is not known, which is another thing than none."""
    seen = {name for item in figures for name in item["seen"]}
    for phases in (run.phases_ms, *(row["phases_ms"] for row in run.per_rank)):
        for name in PHASES:
            if phases is not None and name not in seen:
                phases["other"] += phases[name] or 0.0  # looked for there: the phases still sum to the step
                phases[name] = None
    if "communication" not in seen:
        run.communication_bytes = run.overlapped_communication_ms = None


def _batch_size(figures: Sequence[dict[str, Any]]) -> int | None:
    """Samples that most steps consumed over all ranks."""
    steps = zip(*(item["counts"] for item in figures), strict=False)
    common = Counter(sum(counts) for counts in steps).most_common(1)
    return common[0][0] or None if common else None


def _accumulated(figures: Sequence[dict[str, Any]]) -> int | None:
    """Backward passes per update, where that is a whole number."""
    backwards, updates = figures[0]["backwards"], figures[0]["updates"]
    return backwards // updates if updates and backwards and backwards % updates == 0 else None


def failure(board: Board, left: Sequence[dict[str, Any]], codes: Sequence[int | None]) -> dict[str, Any] | None:
    """Who failed first: rank, step, phase, what happened and the traceback; None where all ended well.

    A rank that was killed comes before those that raised, for they raise because it is gone.
    """
    found = []
    for rank, (item, code) in enumerate(zip(left, codes, strict=True)):
        raised = item.get("failure")
        step, phase = board.where(rank)
        if raised:
            found.append((1, raised["time"], {"rank": rank, **raised}))
        elif code is not None and code < 0:
            found.append((0, 0.0, {"rank": rank, "step": step, "phase": phase, "line": killed(-code)}))
        elif code:
            line = f"it ended with exit code {code}"
            found.append((2, 0.0, {"rank": rank, "step": 0, "phase": phase, "line": line}))
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def killed(number: int) -> str:
    name = signal.Signals(number).name
    memory = "; the system does this when memory runs out" if number == signal.SIGKILL else ""
    return f"killed by signal {number} ({name}){memory}"
