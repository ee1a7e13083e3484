"""A running run as a Run: what its live file says, in the form that tables, sentences and charts read."""

from __future__ import annotations

from ...errors import BadInput
from ...record.live_state import State
from ...record.run import SCHEMA, Run
from ...record.step_losses import MOST
from ...record.untrusted import fits


def as_run(state: State, status: str, reason: str | None = None) -> Run:
    """The record as far as it is known."""
    run = _so_far(state)
    run.status, run.reason, run.device = status, reason, state["device"]
    run.steps = max(0, state["step"] or 0)
    run.samples_per_second, run.phases_ms = state["samples_per_second"], dict(state["phases_ms"])
    run.seconds = run.steps * sum(filter(None, run.phases_ms.values())) / 1000  # by what the words mean (docs/words.md)
    run.steps_per_loss, run.losses = _losses(state)
    run.epochs = [{"epoch": epoch, "test_accuracy": accuracy} for epoch, accuracy in state["tested"]]
    return run


def _so_far(state: State) -> Run:
    try:
        return Run.from_record({"schema": SCHEMA, **state.get("run", {})})
    except BadInput:  # an older version wrote the label alone
        name, _, text = state["strategy"].partition(":")
        options = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        return Run(task=state["task"], strategy=name, options=options, ranks=state["ranks"])


def _losses(state: State) -> tuple[int, list[float | None]]:
    """One entry per step, or per so many steps, as a record has them; what is in between is not known."""
    points = [(step, loss) for step, loss in state["curve"] if step > 0 and fits(loss, float)]
    last = max((step for step, _ in points), default=0)
    each = max(1, -(-last // MOST))
    losses: list[float | None] = [None] * -(-last // each)
    for step, loss in points:
        losses[(step - 1) // each] = loss
    return each, losses
