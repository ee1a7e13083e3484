"""What a report says about runs beside the charts: every figure of a record, how to repeat it, on which machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..record.evaluation import in_words
from ..record.run import SCHEMA, Run
from ..record.slow_rank import slow_name
from .figures import hosts, kind, memory_text, named_hosts, number
from .forecasts import forecast_fact
from .scaling import family

Named = Sequence[tuple[str, Run]]
Facts = list[tuple[str, str]]


def title_of(runs: Sequence[Run]) -> str:
    tasks = list(dict.fromkeys(str(run.task or "a task") for run in runs))
    what = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    labels = {family(run) for run in runs}
    return f"{what} under {labels.pop() if len(labels) == 1 else f'{len(labels)} strategies'}"


def common_facts(runs: Sequence[Run]) -> list[str]:
    """What all runs have in common, in a few words."""

    def common(values: Iterable[Any]) -> Any:
        found = {value for value in values if value is not None}
        return found.pop() if len(found) == 1 else None

    machines = [run.environment or {} for run in runs]
    batch, cores = common(run.batch_size for run in runs), common(machine.get("cores") for machine in machines)
    device = common(kind(run) for run in runs if run.device)
    processor = common(machine.get("gpu" if device == "cuda" else "cpu") for machine in machines)
    torch = common(machine.get("torch") for machine in machines)
    days = {str(run.started)[:10] for run in runs if run.started}
    facts = (
        (batch, f"batch of {batch}"),
        (processor, str(processor)),
        (cores, f"{cores} cores"),
        (torch, f"torch {torch}"),
        (days, " to ".join(sorted({min(days), max(days)})) if days else ""),
    )
    return [fact for known, fact in facts if known]


def run_facts(run: Run) -> Facts:
    """Every figure of a record that is known."""
    facts: list[tuple[str, Any]] = [
        ("task", run.task),
        ("reason", run.reason),
        ("exact", _exact(run)),
        ("ranks", run.ranks),
        ("threads per rank", run.threads),
        ("hosts", named_hosts(hosts(run))),
        ("devices", ", ".join(str(device) for device in run.devices or []) or run.device),
        ("precision", run.precision),
        ("seed", run.seed),
        ("batch size", run.batch_size),
        ("accumulate", run.accumulate if run.accumulate != 1 else None),
        ("steps", run.steps or None),
        ("updates", run.updates or None),
        ("time in steps", _unit(run.seconds, "s")),
        ("start-up", _unit(run.startup_seconds, "s")),
        ("test", in_words(run.test) if run.test else None),
        ("test of the averaged weights", in_words(run.ema["test"]) if run.ema and run.ema.get("test") else None),
        ("evaluation", _unit(run.evaluation_seconds, "s")),
        ("checkpoints", _unit(run.checkpoint_seconds, "s")),
        ("step", _step(run)),
        ("forecast", forecast_fact(run)),
        ("in the whole fit", _whole_fit(run)),
        ("cores used by other processes", _others(run)),
        ("communication per step", _bytes(run.communication_bytes)),
        ("hidden communication per step", _unit(run.overlapped_communication_ms, "ms")),
        ("GPU memory", _gpu_memory(run)),
        ("phases", run.phases_source if run.phases_source != "measured" else None),
        ("slow rank", _slow(run)),
        ("started", run.started),
        ("resumed from", _pairs(run.resumed_from)),
        ("restarts", run.restarts or None),
        ("faults", "; ".join(_pairs(fault) or "" for fault in run.faults or []) or None),
        ("notes", "; ".join(str(note) for note in run.notes or []) or None),
        ("weights (SHA-256)", run.weights_sha256),
        ("record", _version(run)),
        ("folder", str(run.folder) if run.folder else None),
    ]
    return [(key, str(value)) for key, value in facts if value not in (None, "")]


def _version(run: Run) -> str:
    older = ", written by an older manyhands: what it did not record is left out" if (run.schema or 0) < SCHEMA else ""
    return f"schema {run.schema}{older}"


def _exact(run: Run) -> str | None:
    if run.exact is None:
        return None
    promise = "yes: the weights of one process" if run.exact else "no"
    return f"{promise} ({run.exact_reason})" if run.exact_reason else promise


def _pairs(values: object) -> str | None:
    if not isinstance(values, dict):
        return None if values is None else str(values)
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _unit(value: object, unit: str) -> str | None:
    known = number(value)
    return None if known is None else f"{known:,.2f} {unit}"


def _bytes(value: object) -> str | None:
    known = number(value)
    if known is None:
        return None
    return f"{known / 1024:,.1f} KiB" if known < 2**20 else memory_text(known)


def _step(run: Run) -> str | None:
    middle, low, high = (number((run.step_ms or {}).get(key)) for key in ("median", "p10", "p90"))
    if middle is None:
        return None
    return f"{middle:.2f} ms" + ("" if low is None or high is None else f" ({low:.2f} to {high:.2f} in 8 of 10 steps)")


def _whole_fit(run: Run) -> str | None:
    """Beside the figures of a comparison's rounds, those of the fit that accuracy and memory are from."""
    whole = run.whole_fit or {}
    speed, step = number(whole.get("samples_per_second")), number((whole.get("step_ms") or {}).get("median"))
    return None if speed is None or step is None else f"{speed:,.0f} samples/s, median step {step:.2f} ms"


def _others(run: Run) -> str | None:
    taken = number(run.others_cores)
    return None if taken is None else f"{taken:.1f} of {(run.environment or {}).get('cores')}"


def _gpu_memory(run: Run) -> str:
    return ", ".join(
        f"GPU {gpu.get('gpu')} {memory_text(held)}"
        for gpu in (run.usage or {}).get("gpus") or []
        if (held := number(gpu.get("memory_bytes"))) is not None
    )


def _slow(run: Run) -> str | None:
    if not run.slow_rank:
        return None
    behind = _unit(run.slow_rank.get("behind_ms"), "ms")
    late = f", {behind} behind the others per step" if behind else ""
    return f"{slow_name(run.slow_rank)} in {run.slow_rank.get('phase')}{late}"


def commands(named: Named) -> dict[str, list[str]]:
    """The exact commands, each with the runs that came from it."""
    found: dict[str, list[str]] = {}
    for name, run in named:
        if run.command:
            found.setdefault(run.command, []).append(name)
    return found


def machines(named: Named) -> list[tuple[Facts, list[str]]]:
    """The machines the figures were measured on, each with its runs."""
    found: dict[str, tuple[Facts, list[str]]] = {}
    for name, run in named:
        facts = [(str(key), str(value)) for key, value in (run.environment or {}).items() if value is not None]
        if facts:
            found.setdefault(repr(facts), (facts, []))[1].append(name)
    return list(found.values())
