"""What bare `manyhands` shows: what it is and for whom, its commands by the question they answer, examples, where to read on."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from ..strategies.table import TABLE

WIDTH = 80
ABOUT = (
    f"Find the fastest way to train your PyTorch model: manyhands trains it under {len(TABLE)} parallel strategies, "
    "shows where the time of each step goes, and says what to change. For anyone whose training is too slow, on one "
    "machine or several."
)
EXAMPLES = {
    "manyhands compare": "which strategy is fastest on this machine?",
    "manyhands diagnose my_task.py ddp": "what holds my job back, and what helps?",
    "manyhands run train.py --epochs 3": "where does my own script spend its time?",
}
OPTIONS = {
    "-h, --help": "Show this text, or a command's options.",
    "--version": "Print the version.",
    "--install-completion": "Complete commands and names with the Tab key.",
    "--show-completion": "Print the script that does so.",
}
MORE = (
    "TASK is a built-in name (manyhands tasks) or a Python file that defines `task`; docs/port.md shows how to turn "
    "your own loop into one. The documentation is in README.md and docs/ of the project."
)


def grouped(groups: Mapping[str, tuple[Callable[..., Any], ...]]) -> type[TyperGroup]:
    """A typer group whose help shows its commands in these groups."""

    class Grouped(TyperGroup):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            formatter.write("Usage: manyhands COMMAND [OPTIONS]\n\n")
            formatter.write(f"{textwrap.fill(ABOUT, WIDTH)}\n")
            for title, commands in groups.items():
                names = [command.__name__ for command in commands]
                lines = {name: str(self.commands[name].help).partition("\n")[0] for name in names}
                formatter.write(_section(title, lines))
            formatter.write(_section("Options", OPTIONS))
            formatter.write(_section("Examples", EXAMPLES))
            formatter.write(f"\n{textwrap.fill(MORE, WIDTH, break_on_hyphens=False)}\n")

    return Grouped


class NamedArguments(TyperCommand):
    """A command whose help calls arguments by their names alone: newer versions of typer add Python's types to them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown, self.params = self.params, [_untyped(one) for one in self.params]
        super().format_options(ctx, formatter)
        self.params = shown


def _untyped(param: Any) -> Any:
    """`STRATEGY`, not `STRATEGY <list[str]>`."""
    if not isinstance(param, TyperArgument):
        return param
    named = copy(param)
    record = param.get_help_record
    named.get_help_record = lambda ctx: (  # type: ignore[method-assign]
        (re.sub(r" <.*>$", "", found[0]), found[1]) if (found := record(ctx)) else found
    )
    return named


def _section(title: str, lines: Mapping[str, str]) -> str:
    column = max(10, *map(len, lines)) + 4
    rows = [
        textwrap.fill(text, WIDTH, initial_indent=f"  {name}".ljust(column), subsequent_indent=" " * column)
        for name, text in lines.items()
    ]
    return "\n".join(["", title, *rows, ""])
