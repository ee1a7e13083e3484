"""What a report says about each run beside the charts: outcome, every figure of its record, how to repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from ..record.run import SCHEMA, Run
from ..record.slow_rank import slow_one
from .figures import memory_text, number

Named = Sequence[tuple[str, Run]]


def run_details(named: Named) -> str:
    """Every run's figures, folded away."""
    return "".join(
        f"<details><summary>{escape(name)}{_summary(run)}</summary>{_list(_facts(run))}</details>"
        for name, run in named
    )


def _summary(run: Run) -> str:
    return "" if run.status == "done" else f" <span>{escape(str(run.status))}</span>"


def _facts(run: Run) -> list[tuple[str, str]]:
    facts: list[tuple[str, Any]] = [
        ("task", run.task),
        ("reason", run.reason),
        ("exact", _exact(run)),
        ("ranks", run.ranks),
        ("threads of a rank", run.threads),
        ("devices", ", ".join(str(device) for device in run.devices or []) or run.device),
        ("precision", run.precision),
        ("seed", run.seed),
        ("batch size", run.batch_size),
        ("accumulate", run.accumulate if run.accumulate != 1 else None),
        ("steps", run.steps or None),
        ("updates", run.updates or None),
        ("time in steps", _seconds(run.seconds)),
        ("start-up", _seconds(run.startup_seconds)),
        ("evaluation", _seconds(run.evaluation_seconds)),
        ("checkpoints", _seconds(run.checkpoint_seconds)),
        ("step", _step(run)),
        ("communication per step", _bytes(run.communication_bytes)),
        ("hidden communication per step", _milliseconds(run.overlapped_communication_ms)),
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


def _seconds(value: object) -> str | None:
    known = number(value)
    return None if known is None else f"{known:,.2f} s"


def _milliseconds(value: object) -> str | None:
    known = number(value)
    return None if known is None else f"{known:,.2f} ms"


def _bytes(value: object) -> str | None:
    known = number(value)
    if known is None:
        return None
    return f"{known / 1024:,.1f} KiB" if known < 2**20 else memory_text(known)


def _step(run: Run) -> str | None:
    times = run.step_ms or {}
    middle, low, high = (number(times.get(key)) for key in ("median", "p10", "p90"))
    if middle is None:
        return None
    return f"{middle:.2f} ms" + ("" if low is None or high is None else f" ({low:.2f} to {high:.2f} in 8 of 10 steps)")


def _gpu_memory(run: Run) -> str | None:
    used = [
        f"GPU {gpu.get('gpu')} {memory_text(held)}"
        for gpu in (run.usage or {}).get("gpus") or []
        if (held := number(gpu.get("memory_bytes"))) is not None
    ]
    return ", ".join(used) or None


def _slow(run: Run) -> str | None:
    if not run.slow_rank:
        return None
    behind = _milliseconds(run.slow_rank.get("behind_ms"))
    late = f", {behind} behind the others per step" if behind else ""
    return f"{slow_one(run.slow_rank)} in {run.slow_rank.get('phase')}{late}"


def repeat(named: Named) -> str:
    """The exact commands; one is enough where all runs came from the same."""
    commands: dict[str, list[str]] = {}
    for name, run in named:
        if run.command:
            commands.setdefault(run.command, []).append(name)
    if not commands:
        return '<p class="absent">The runs came from Python, so no command was recorded.</p>'
    single = len(commands) == 1
    return "".join(
        ("" if single else f"<h3>{escape(', '.join(names))}</h3>")
        + f'<pre tabindex="0"><code>{escape(command)}</code></pre>'
        for command, names in commands.items()
    )


def environment(named: Named) -> str:
    """The machine the figures were measured on: once, where all runs share it."""
    machines: dict[str, tuple[list[tuple[str, str]], list[str]]] = {}
    for name, run in named:
        facts = [(str(key), str(value)) for key, value in (run.environment or {}).items() if value is not None]
        machines.setdefault(repr(facts), (facts, []))[1].append(name)
    known = [(facts, names) for facts, names in machines.values() if facts]
    if not known:
        return '<p class="absent">No run recorded its machine.</p>'
    heading = "Machine" if len(known) == 1 else "Machines"
    return f"<h3>{heading}</h3>" + "".join(
        ("" if len(known) == 1 else f"<h4>{escape(', '.join(names))}</h4>") + _list(facts) for facts, names in known
    )


def _list(facts: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in facts)
    return f'<dl class="facts-list">{items}</dl>'
