"""`manyhands verify`: is a strategy equal to `single`, and if not, why?"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from . import FAILED
from .inputs import read_task
from .options import AsJson, Quiet, TaskArgument, fit_options, with_options


@with_options(fit_options)
def verify(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None,
        typer.Argument(metavar="STRATEGY", help="default: those that promise the weights of single and take this task"),
    ] = None,
    steps: Annotated[int, typer.Option(help="how many steps are compared")] = 20,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Is a strategy equal to single, from equal weights and batches? If not, why?"""
    from ..studies.verify.verify import verify as compare_with_single
    from . import terminal

    def say(text: str) -> None:
        if not quiet:
            print(f"manyhands: {text}", file=sys.stderr, flush=True)

    work = read_task(task, chosen.pop("batch_size"), chosen.pop("seed"))
    chosen["threads"] = chosen["threads"] or 1  # sums in one order
    document = compare_with_single(work, strategies or None, steps=steps, say=say, **chosen)
    if as_json:
        terminal.show_json(document)
    else:
        show(document)
    if any(result["exact"] and result["equal"] is False for result in document["results"]):
        raise typer.Exit(FAILED)


def show(document: Mapping[str, Any]) -> None:
    """A line for each strategy, a sentence for each that differs, and what is wrong with the task itself."""
    from . import terminal

    out = terminal.console()
    numbers = ("gradient", "weights", "tolerance", "step")
    headings = ("strategy", "equal", *numbers, "cause")
    filled = terminal.table(headings, numbers, wrap=("strategy",), gap=1)
    results: Sequence[Mapping[str, Any]] = document["results"]
    for result in results:
        differences = (result["gradient_difference"], result["weight_difference"], result["tolerance"])
        equal = {True: "yes", False: "no", None: "-"}[result["equal"]]
        step = str(result["first_step"] or "-")
        filled.add_row(result["strategy"], equal, *map(_difference, differences), step, result["cause"] or "-")
    out.print(filled)
    for result in results:
        if result["reason"]:
            out.print(f"\n{result['strategy']}: {result['reason']}.")
        if result["cure"]:
            out.print(f"  to do: {result['cure']}")
    for finding in document["findings"]:
        out.print(f"\n{finding['message']}\n  to do: {finding['advice']}")


def _difference(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
