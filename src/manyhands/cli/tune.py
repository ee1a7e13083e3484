"""`manyhands tune`: the fastest settings of a job, by measurement."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from ..record.neighbours import BUSY
from .inputs import begin, read_task, task_source
from .options import AsJson, Quiet, StrategyArgument, TaskArgument, fit_options, with_options


@with_options(fit_options)
def tune(
    task: TaskArgument = "glyphs",
    strategy: StrategyArgument = "single",
    settings: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="NAME,...",
            help="Settings to search: loader_workers, threads, bucket_mb, chunks, batch_size (default: all that apply "
            "except batch_size).",
        ),
    ] = None,
    budget: Annotated[float, typer.Option(metavar="S", help="Seconds the search may take.")] = 300.0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Find the fastest settings of a job by measuring them.

    It varies loader workers, threads, gradient buckets, chunks and, if asked, the batch size.
    """
    begin(task, strategy)
    from ..studies.tune import tune as search
    from . import terminal

    batch_size, seed = chosen.pop("batch_size"), chosen.pop("seed")
    began = time.monotonic()

    def say(text: str) -> None:
        if not quiet:
            print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    result = search(
        read_task(task, batch_size, seed),
        strategy,
        None if settings is None else [name.strip() for name in settings.split(",") if name.strip()],
        budget=budget,
        with_batch=lambda count: read_task(task, count, seed),
        given={"batch_size": batch_size, "seed": seed, "on": chosen["on"] if chosen["on"] != "local" else None},
        say=say,
        source=task_source(task),
        **chosen,
    )
    terminal.show_json(result) if as_json else _show(result)


def _show(result: dict[str, Any]) -> None:
    from . import terminal

    out = terminal.console(min(80, terminal.console().width))
    names = list(result["tried"][0]["settings"])
    filled = terminal.table((*names, "samples/s", "rounds"), numbers=(*names, "samples/s", "rounds"))
    for one in sorted(result["tried"], key=lambda one: -(one["samples_per_second"] or 0)):
        speed = one["samples_per_second"]
        cells = [f"{one['settings'][name]:g}" if name in one["settings"] else "-" for name in names]
        filled.add_row(*cells, f"{speed:,.0f}" if speed else "-", str(one["rounds"]))
    out.print(filled)
    for one in result["not_tried"]:
        out.print(f"not tried: {one['setting']}: {one['reason']}")
    low, high = result["interval"]
    best = ", ".join(f"{name}={value:g}" for name, value in result["best"].items())
    if result["speedup"] > 1:
        out.print(f"best: {best}: {result['speedup']:.2f}x the default ({low:.2f} to {high:.2f})")
    else:
        out.print(f"the default is the best that was found: {best}")
    out.print(f"stopped: {result['stopped']}")
    if result["rate"]:
        out.print(f"rate: {result['rate']}")
    if (result["others_share"] or 0) > BUSY:
        out.print(
            f"other processes used {result['others_cores']:.1f} cores meanwhile; measure again on a quiet machine"
        )
    print(result["command"])
