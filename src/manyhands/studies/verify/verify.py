"""verify(): is a strategy equal to `single`, from equal weights and batches, and if not, why?

1. the gradient of the first update and the weights after some steps, under `single` and under the strategy
2. how far one rounding in the first weights takes `single`: the tolerance
3. where a strategy differs by more, also in float64: the first step and the first parameter, and the cause, found by
   fits in which one thing is changed: what makes the strategy equal is what made it differ
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...errors import BadInput, ManyhandsError, RankFailed, Refused
from ...strategies import TABLE, make_strategy
from ...strategies.contract import Strategy, processes
from ...strategies.job import Job, trained_parameters
from ...task import Task
from ...training import PRELOAD
from ...training.build import build
from ...training.proof.probe import probe
from ...training.settings import FitSettings
from ...world.devices import resolve_devices
from ...world.engines.choose import opened
from ...world.launch.fork_server import warm_up
from ...world.torchrun_variables import started_by_torchrun
from ..findings import findings
from .changes import changes
from .fits import Asked, Change, Fits
from .judge import Judge, Judgement, first_step
from .search import find_cause
from .words import asynchronous, failed, not_equal, refused, rounded

STEPS = 20
RANKS = 2
NOTICEABLE = 1e-3  # a difference in the weights that somebody would ask about, though it is rounding
Result = dict[str, Any]


def verify(
    task: Task,
    strategies: Sequence[str | Strategy] | str | Strategy | None = None,
    *,
    ranks: int | None = None,
    steps: int = STEPS,
    say: Callable[[str], None] = lambda text: None,
    **keywords: Any,
) -> dict[str, Any]:
    """Compare each strategy with `single` over `steps` steps; `{"results": [...], "findings": [...]}`.

    Without strategies: those that promise the weights of `single` and take this task. Other keywords are those of `fit`.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise BadInput(f"steps must be a whole number of at least 1 (found {steps!r})")
    if kept := {"run_dir", "resume", "checkpoint_every"} & {name for name, value in keywords.items() if value}:
        raise BadInput(f"verify keeps no runs; leave out {', '.join(sorted(kept))}")
    chosen = [strategies] if isinstance(strategies, str | Strategy) else strategies
    made = [make_strategy(spec, None if spec == "single" else ranks or _own(spec)) for spec in chosen or _promising()]
    settings = FitSettings.of(**{"threads": 1, "progress": False, **keywords})
    with opened(settings.on, PRELOAD) as engine:
        engine.reserve(max(map(processes, made)))
        fits = Fits(task, replace(settings, on=engine), say)
        try:
            judge, possible = _prepared(fits, min(steps, settings.step.max_steps or steps))
            results = [_verified(judge, strategy, possible) for strategy in made]
        finally:
            fits.close()
    if chosen is None:
        results = [result for result in results if result["status"] != "refused"]
    say("looking at the task itself")
    return {"results": [_public(result) for result in results], "findings": findings(task)}


def _own(spec: str | Strategy) -> int | None:
    """The ranks of a strategy that says nothing of them; one that does is left alone."""
    return None if isinstance(spec, Strategy) or "ranks=" in spec else RANKS


def _promising() -> list[str]:
    names = [name for name in TABLE if name not in ("single", "hybrid")]
    return [name for name in names if make_strategy(name, RANKS).traits.exact is True]


def _prepared(fits: Fits, steps: int) -> tuple[Judge, list[Change]]:
    """What compares, and the changes there are to try, from one look at the task."""
    case = fits.case(Asked(make_strategy("single"), steps))
    job = build(case.task, case.settings.step)
    if not started_by_torchrun():
        warm_up((*PRELOAD, *_installed(job)))  # every rank of every fit would import them by itself
    probe(job, resolve_devices(case.settings.device, 1), any_layout=False)
    accumulate = min(job.settings.accumulate, job.total_steps)
    possible = changes(job, job.total_steps)
    exact32 = next((change for change in possible if change.cause == "precision"), None)
    trained = frozenset(name for name, _ in trained_parameters(job.model))
    judge = Judge(fits, _finite_steps(fits, job), accumulate, trained, exact32)
    return judge, possible


def _installed(job: Job) -> list[str]:
    """The modules of installed packages that the model's layers come from; the user's own may change under way."""
    names = {type(module).__module__ for module in job.model.modules()}
    files = {name: getattr(sys.modules.get(name), "__file__", None) or "" for name in names}
    return sorted(name for name, file in files.items() if "-packages" in file and not name.startswith("torch."))


def _finite_steps(fits: Fits, job: Job) -> int:
    """As many as `single` makes before its loss is not finite."""
    single = make_strategy("single")
    try:
        fits.run(Asked(single, job.total_steps))
    except RankFailed as failure:
        if failure.kind != "loss" or failure.step is None or failure.step <= job.settings.accumulate:
            raise
        fits.say(f"the loss of single is not finite in step {failure.step}: {failure.step - 1} steps are compared")
        return failure.step - 1
    return job.total_steps


def _verified(judge: Judge, strategy: Strategy, possible: list[Change]) -> Result:
    judge.fits.say(f"{strategy}: comparing it with single")
    try:
        run = judge.record(strategy)
        promised = strategy.traits.exact is True
        judgement = judge.judge(strategy) if promised else judge.astray(strategy)
    except Refused as refusal:
        return _result(strategy, status="refused", exact=None, equal=None, **refused(refusal))
    except ManyhandsError as failure:
        found = find_cause(judge, strategy, possible, gradient_too=False, failed=True)
        promised = strategy.traits.exact is True
        return _result(strategy, status="failed", exact=promised, equal=False, **failed(failure, found))
    result = _result(strategy, judgement, exact=run.exact, equal=judgement.equal)
    if not promised:
        return (
            result
            if judgement.equal
            else {**result, **_place(judge, strategy, judgement), **asynchronous(strategy, judgement)}
        )
    if judgement.equal:
        before = judgement.single_precision
        noticeable = before is not None and before.difference > NOTICEABLE
        return {**result, **rounded(before)} if noticeable and before is not None else result
    place = _place(judge, strategy, judgement)
    wrong_gradient = judgement.gradient is not None and not judgement.gradient.same
    found = find_cause(judge, strategy, possible, wrong_gradient)
    return {**result, **place, **not_equal(judgement, place, found)}


def _place(judge: Judge, strategy: Strategy, judgement: Judgement) -> Result:
    """Where the strategy leaves `single`: by its weights, else by the gradient of the first update."""
    if strategy.traits.exact is True and (found := first_step(judge, strategy, judgement.double)) is not None:
        return {"first_step": found[0], "first_layer": found[1]}
    gradient = judgement.gradient
    first = judgement.weights.first or (gradient.first if gradient is not None else None)
    return {"first_step": judge.accumulate if gradient is not None else None, "first_layer": first}


def _result(strategy: Strategy, judgement: Judgement | None = None, status: str = "done", **known: Any) -> Result:
    gradient = judgement.gradient if judgement is not None else None
    return {
        "strategy": str(strategy),
        "ranks": strategy.ranks,
        "status": status,
        "exact": None,
        "equal": None,
        "gradient_difference": gradient.difference if gradient is not None else None,
        "gradient_tolerance": gradient.tolerance if gradient is not None else None,
        "weight_difference": judgement.weights.difference if judgement is not None else None,
        "tolerance": judgement.weights.tolerance if judgement is not None else None,
        "precision": None if judgement is None else "float64" if judgement.double else "float32",
        "first_step": None,
        "first_layer": None,
        "reason": None,
        "cause": None,
        "cure": None,
        **known,
    }


def _public(result: Result) -> Result:
    """JSON knows no infinity."""
    return {
        key: None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
        for key, value in result.items()
    }
