"""verify for a plain script: does it compute on N ranks what one process would on the same batches, and if not, why?

The script is run as it is on N ranks and on one, watched from inside torch. What looks wrong is a suspicion; the script is
then run again with that one thing changed from outside, and the suspicion is the cause where the change cures it. What
cannot be tried from outside is named with the observation alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...bridges.scripts.witnessed import Seen, Stage
from ...errors import BadInput, RankFailed
from .script_data import data_symptoms
from .script_gradients import gradient_symptoms
from .script_rates import rate_symptoms
from .script_reference import Reference, compare_with_union
from .script_symptom import Symptom, distance, over_ranks

STEPS = 20


def verify_script(
    path: str | Path, arguments: Sequence[str] = (), ranks: int = 2, steps: int = STEPS
) -> dict[str, Any]:
    """The result as `manyhands verify --json` prints it, with one row whose strategy is "script"."""
    if not Path(path).is_file():
        raise BadInput(f"no script at {path}; name a Python file")
    if ranks < 2:
        raise BadInput(f"a script is compared on 2 ranks or more (found --ranks {ranks})")
    if steps < 1:
        raise BadInput(f"--steps must be 1 or more (found {steps})")
    with Stage([str(path), *arguments], ranks, steps) as stage:
        seen = stage.run(ranks, hurries=True)
        _check(seen, Path(path).name, ranks)
        alone = stage.run(1, hurries=True)
        notes = []
        if alone.problem or not alone.updates:
            notes.append(
                f"one rank could not be tried ({alone.problem or 'no step'}): the learning rate was not compared"
            )
        found, trial = _proved(stage, ranks, seen, _at_first_sight(seen, None if notes else alone), notes)
        reference = Reference()
        if found is None:
            reference = compare_with_union(stage, ranks, seen)
            notes += [reference.untried] if reference.untried else []
            found, _ = _proved(stage, ranks, seen, iter(reference.symptoms or ()), notes)
    return {"results": [_row(seen, found, trial, reference, notes)], "findings": []}


def _check(seen: Seen, name: str, ranks: int) -> None:
    if seen.problem:
        spawns = next((facts.get("spawns") for facts in seen.ranks if facts.get("spawns")), None)
        if spawns and spawns != ranks:
            raise BadInput(f"{name} starts {spawns} ranks itself (mp.spawn); use --ranks {spawns}")
        problem = RankFailed(f"{name} failed: {seen.problem}")
        problem.traceback = next((facts["failure"]["traceback"] for facts in seen.ranks if facts["failure"]), None)
        raise problem
    if not seen.updates:
        raise BadInput(f"{name} makes no optimizer step, so there is nothing to compare")


def _at_first_sight(seen: Seen, alone: Seen | None) -> Iterator[Symptom]:
    yield from gradient_symptoms(seen, alone)
    yield from data_symptoms(seen, alone)
    yield from rate_symptoms(seen, alone)


def _proved(
    stage: Stage, ranks: int, seen: Seen, symptoms: Iterator[Symptom], notes: list[str]
) -> tuple[Symptom | None, Seen | None]:
    """The first suspicion that its change cures, and that run."""
    for symptom in symptoms:
        if symptom.change is None:
            symptom.tried = "seen directly; no change from outside can prove it"
            return symptom, None
        trial = stage.run(ranks, symptom.change, hurries=symptom.hurries)
        if trial.problem or not trial.updates:
            symptom.tried = f"seen directly; the change could not be tried ({trial.problem or 'no step was made'})"
            return symptom, None
        if symptom.cured(trial):
            return symptom, trial
        notes.append(f"{symptom.cause} was suspected, but changing it did not help")
    return None, None


def _row(
    seen: Seen, found: Symptom | None, trial: Seen | None, reference: Reference, notes: list[str]
) -> dict[str, Any]:
    ranks, steps = len(seen.ranks), seen.updates
    row: dict[str, Any] = {
        "strategy": "script",
        "exact": True,
        "equal": found is None and reference.equal,
        "gradient_difference": reference.gradient,
        "weight_difference": reference.weight,
        "tolerance": reference.tolerance,
        "first_step": None,
        "first_layer": None,
        "reason": None,
        "cause": None,
        "cure": None,
    }
    untried = f" ({'; '.join(notes)})" if notes else ""
    if found is not None:
        if trial is not None and reference.weight is None:
            row["gradient_difference"] = _between(seen, trial, "used0")
            row["weight_difference"] = _between(seen, trial, f"weights{min(seen.updates, trial.updates) - 1}")
        row |= {"first_step": found.step, "first_layer": found.layer, "cause": found.cause, "cure": found.cure}
        row["reason"] = f"{found.reason}; {found.tried}{untried}"
    elif not reference.equal:
        row |= {"first_step": reference.step, "first_layer": reference.layer, "cause": "unknown"}
        row["reason"] = (
            f"step {reference.step}: {reference.layer} differs from one process on the batches of all ranks by "
            f"{reference.weight:.1e}, and nothing that was changed explains it{untried}"
        )
    else:
        same = "weights are those of one process on the batches of all ranks"
        checked = same if reference.weight is not None else "all ranks used the average of their gradients"
        row["reason"] = f"{steps} steps on {ranks} ranks: {checked}{untried}"
    return row


def _between(one: Seen, other: Seen, name: str) -> float | None:
    """The largest relative difference of one array between two runs, over ranks."""
    first, second = over_ranks(one, name), over_ranks(other, name)
    if not first or not second:
        return None
    gaps = [distance(mine, theirs, one.ranks[0])[0] for mine, theirs in zip(first, second, strict=True)]
    return max(gaps) if max(gaps) < float("inf") else None
