"""The page of any set of runs: the report's own table, sentences and charts, and what the running ones are at."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

from ...record.live_state import STALE_SECONDS, State
from ...record.run import Run
from ..chart import Chart, chart_data
from ..comparing import names
from ..page import page
from ..phrases import amount, joined
from ..standalone import templates
from .listing import View

OFTEN, SELDOM, NEVER = 2000, 10_000, 0  # milliseconds until a viewer asks again
LAST_WORDS = "The figures are the last that were reported."
MOST_RANKS = 64  # named one by one
GOING_ON = {"running", "starting", "saving"}
WORDS = {
    "running": "running",
    "starting": "starting",
    "saving": "saving what it has trained",
    "crashed": "crashed: its process ended before it could write a record",
}


def tag_of(views: Sequence[View]) -> str:
    """What the page is made from, in short: equal tags, equal pages."""
    return hashlib.sha256(repr([view.made_from for view in views]).encode()).hexdigest()[:16]


def page_of(views: Sequence[View]) -> str:
    """The page as text: the report's, but that its scripts and its style have addresses of their own."""
    ordered = sorted(views, key=lambda view: str(view.run.started or "9"))
    runs = [view.run for view in ordered]
    statuses = {run.status for run in runs}
    live = {
        "frame": "live/frame.html.jinja",
        "tag": tag_of(views),
        "every": OFTEN if statuses & GOING_ON else SELDOM if "crashed" in statuses else NEVER,
        "now": [_now(name, view) for name, view in zip(names(runs), ordered, strict=True) if view.run.status in WORDS],
    }

    def linked(template: str, charts: Sequence[Chart], /, **values: Any) -> str:
        _say_what_is_open(runs, values)
        chosen = templates().get_template("live/view.html.jinja")  # it extends the report's template
        return str(chosen.render(chart_data=chart_data(charts), **live, **values))

    return page(runs, render=linked)


def _say_what_is_open(runs: Sequence[Run], values: dict[str, Any]) -> None:
    """Verdicts are for runs that have ended; and what a run may yet record is not missing."""
    going_on = [name for name, run in zip(names(runs), runs, strict=True) if run.status in GOING_ON]
    if any(run.status not in WORDS for run in runs):
        if going_on:
            still = f"{joined(going_on)} {'is' if len(going_on) == 1 else 'are'} still running and not judged yet."
            values["sentences"] = [*values["sentences"], still]
        return
    values["sentences"] = ["The figures are those so far; they change during training." if going_on else LAST_WORDS]
    _curves_first(values, several=len(runs) > 1)


def _curves_first(values: dict[str, Any], several: bool) -> None:
    """The charts there are, those of learning first; the speed of one run alone would be a single bar."""
    charts = {key: [chart for chart in found if chart.drawing] for key, found in values["sections"].items()}
    order = [key for key in charts if key != "speed"] + ["speed"] * several
    sections = {key: charts[key] for key in order if charts[key]}
    titles = values["contents"]
    first, *last = (key for key in titles if key not in charts)
    values |= {"sections": sections, "contents": {key: titles[key] for key in (first, *sections, *last)}}


def _now(name: str, view: View) -> dict[str, Any]:
    """What a run that has not ended is at."""
    status = view.run.status
    found: dict[str, Any] = {"name": name, "status": status, "what": WORDS[status], "step": 0, "steps": None}
    if view.state is None:
        return {**found, "lines": [], "ranks": []}
    state = view.state
    return {
        **found,
        "step": max(0, state["step"] or 0),
        "steps": state["steps"],
        "lines": [" · ".join(_progress(view.run, state)), *_machine(state), *_silence(state)],
        "ranks": [f"rank {rank}: step {step:,}, {phase}" for rank, step, phase in (state["beats"] or [])[:MOST_RANKS]],
    }


def _progress(run: Run, state: State) -> list[str]:
    steps = f" of {state['steps']:,}" if state["steps"] else ""
    facts = [f"step {run.steps:,}{steps}"]
    if state["epochs"]:
        facts.append(f"epoch {state['epoch']} of {state['epochs']}")
    facts.append(f"{amount(state['ranks'], 'rank')} on {state['device']}")
    if state["samples_per_second"]:
        facts.append(f"{state['samples_per_second']:,.0f} samples/s")
    losses = [loss for _, loss in state["curve"] if loss is not None]
    tested = [share for _, share in state["tested"] if share is not None]
    facts += [f"loss {losses[-1]:.4f}"] if losses else []
    return facts + ([f"test accuracy {100 * tested[-1]:.2f} %"] if tested else [])


def _silence(state: State) -> list[str]:
    silent = time.time() - state["time"]
    return [f"Nothing heard for {silent:,.0f} s."] if silent > STALE_SECONDS else []


def _machine(state: State) -> list[str]:
    cores = [f"{percent:.0f} %" for percent in state.get("cores", [])]
    gpus = [f"{percent:.0f} % ({held / 2**30:.1f} GiB)" for percent, held in state.get("gpus", [])]
    parts = [f"{noun} {', '.join(found)}" for noun, found in (("cores:", cores), ("GPUs:", gpus)) if found]
    return [f"In use now: {'; '.join(parts)}"] if parts else []
