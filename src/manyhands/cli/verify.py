"""`manyhands verify`: is a strategy equal to `single`, and if not, why?"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from ..errors import BadInput
from . import FAILED
from .inputs import begin, read_task
from .options import AsJson, Quiet, TaskArgument, fit_options, strategy_names, with_options


@with_options(fit_options)
def verify(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STRATEGY",
            help="Strategies to check (default: all that promise the weights of single and can train this task). "
            "After a script: the script's own arguments.",
            autocompletion=strategy_names,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="S", help="How many steps are compared.")] = 20,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Check that a strategy trains the weights of one process.

    Where it does not, the cause is searched for. TASK may also be a plain training script: it is then compared on several
    ranks and on one.
    """
    from ..studies.verify.script_or_task import is_script

    if not is_script(task):
        begin(task, *(strategies or ()), on=chosen["on"])
    from . import terminal

    def say(text: str) -> None:
        if not quiet:
            print(f"manyhands: {text}", file=sys.stderr, flush=True)

    verified = _script if is_script(task) else _task
    document = verified(task, strategies or [], steps, say, chosen)
    if as_json:
        terminal.show_json(document)
    else:
        show(document)
    if any(result["exact"] and result["equal"] is False for result in document["results"]):
        raise typer.Exit(FAILED)


def _task(
    task: str, strategies: list[str], steps: int, say: Callable[[str], None], chosen: dict[str, Any]
) -> dict[str, Any]:
    from ..studies.verify.verify import verify as compare_with_single

    work = read_task(task, chosen.pop("batch_size"), chosen.pop("seed"))
    chosen["threads"] = chosen["threads"] or 1  # sums in one order
    return compare_with_single(work, strategies or None, steps=steps, say=say, **chosen)


def _script(
    path: str, arguments: list[str], steps: int, say: Callable[[str], None], chosen: dict[str, Any]
) -> dict[str, Any]:
    from ..studies.verify.script import verify_script

    usual = {name: option.default for name, option in inspect.signature(fit_options).parameters.items()}
    if other := next((name for name, value in chosen.items() if name != "ranks" and value != usual[name]), None):
        raise BadInput(
            f"a script runs as it is and takes only --ranks and --steps here (found --{other.replace('_', '-')}); "
            "put its own arguments after --"
        )
    say(f"{path}: running it on one rank and on {chosen['ranks'] or 2}")
    return verify_script(path, arguments, chosen["ranks"] or 2, steps)


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
