"""diagnose(): what holds a job back, what it costs, and which changes help by how much, all measured.

1. a stretch of the job as it is: start, evaluation, checkpoints, pauses
2. a few slices of its steps: phases, the slow rank, what others do to the machine
3. rounds of slices: the job as it is, and with one thing changed each; what does not help drops out after a round
4. the judgement (judge.py), and the changes that help, best first
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import BadInput
from ...strategies import make_strategy
from ...strategies.contract import Strategy
from ...task import Task
from ...training import PRELOAD
from ...training.settings import FitSettings
from ...world.engines.choose import LOCAL, opened
from .advice import advice
from .apply import apply_best
from .job import Diagnosed
from .judge import judge, too_busy
from .measured import Measured
from .whole import run_stretch
from .words import verdict

FEWEST_SECONDS = 10
Say = Callable[[str], None]


def diagnose(
    task: Task,
    strategy: str | Strategy = "single",
    *,
    ranks: int | None = None,
    budget: float = 120.0,
    apply: bool = False,
    run_dir: str | os.PathLike[str] | None = None,
    even_if_busy: bool = False,
    typed: Mapping[str, Any] | None = None,
    say: Say = lambda text: None,
    **keywords: Any,
) -> dict[str, Any]:
    """What holds this job back, by experiment; `apply` then runs it with the best change and says what that gained.

    `budget` is in seconds, for the experiments; `run_dir` is where the job that `apply` runs is kept. `typed`
    are options of the task that commands must repeat (batch_size, seed). Other keywords are those of `fit`.
    """
    if not budget >= FEWEST_SECONDS:
        raise BadInput(f"budget must be at least {FEWEST_SECONDS} seconds (found {budget:g})")
    until = time.monotonic() + budget
    on = keywords.pop("on", LOCAL)
    typed = {**(typed or {}), "on": on if isinstance(on, str) and on != LOCAL else None}
    # a folder of the experiments' checkpoints, and one engine for all of them
    with tempfile.TemporaryDirectory(prefix="manyhands-") as folder, opened(on, PRELOAD) as engine:
        asked = keywords.get("checkpoint_every") is not None
        settings = FitSettings.of(progress=False, run_dir=folder if asked else None, on=engine, **keywords)
        job = Diagnosed.of(task, make_strategy(strategy, ranks), settings, typed)
        found = Measured(job, run_stretch(job))
        found.look(say)
        if even_if_busy or not too_busy(found.evidence(even_if_busy)):  # else no experiment can mean anything
            found.experiment(until, budget, say)
        evidence = found.evidence(even_if_busy)
        helpful = [] if too_busy(evidence) else advice(job, found.base, found.tried, found.ends(evidence.parts))
        cost = judge(evidence)
        result = {
            "bottleneck": cost.bottleneck,
            "rank": cost.rank,
            "cost_ms": cost.cost_ms,
            "step_ms": evidence.step_ms,
            "experiments": found.experiments(evidence.parts),
            "advice": [one.record() for one in helpful],
            "verdict": verdict(job, evidence, cost, helpful),
            "phases_ms": evidence.phases_ms,
            "seconds": {**vars(evidence.parts), "total": evidence.parts.total},
            "others_cores": evidence.others,
            "not_tried": found.skipped,
            "applied": None,
        }
        if apply and helpful:
            result["applied"] = apply_best(job, helpful[0], evidence.parts, run_dir, say)
        return result
