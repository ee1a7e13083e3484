"""What there is to train with, in words: the lists of tasks and strategies, and all there is to know of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .terminal import WIDEST, console, table


def show_tasks(lines: Mapping[str, str]) -> None:
    filled = table(("task", "line"), wrap=("line",), titled=False)
    for name, line in lines.items():
        filled.add_row(name, line)
    out = console()
    out.print(filled)
    out.print("\nmanyhands tasks NAME shows the options of one.")


def show_strategies(rows: Sequence[Mapping[str, Any]]) -> None:
    """What each does and whether it is exact; where it runs, if the terminal is wide enough."""
    out = console()
    headings = ["strategy", "exact", "what it does", "where it runs"][: 4 if out.width >= WIDEST else 3]
    filled = table(headings, wrap=headings[2:])
    for row in rows:
        cells = row["name"], "yes" if row["exact"] else "no", row["summary"], row["runs_on"]
        filled.add_row(*cells[: len(headings)])
    out.print(filled)
    out.print("\nexact: promises the weights that one process would train")
    out.print("manyhands strategies NAME shows the options of one, and where it runs.")


def show_strategy(row: Mapping[str, Any]) -> None:
    out = console()
    short = f" (short: {row['short']})" if row["short"] else ""
    out.print(f"{row['name']}{short}: {row['summary']}\n")
    facts = table(("fact", "text"), wrap=("text",), titled=False)
    promise = "yes: it promises the weights that one process would train" if row["exact"] else "no"
    facts.add_row("exact", promise)
    for option, why in row["inexact"].items():
        facts.add_row("" if row["exact"] else "why", f"no with {option}: {why}" if option else why)
    facts.add_row("runs on", row["runs_on"])
    out.print(facts)
    _show_options(row)
    out.print(f"\nmore: docs/strategies/{row['name']}.md")


def show_task(row: Mapping[str, Any]) -> None:
    console().print(f"{row['name']}: {row['summary']}")
    _show_options(row)
    console().print("\nmore: docs/tasks.md")


def _show_options(row: Mapping[str, Any]) -> None:
    out = console()
    out.print(f"\noptions, given as {row['name']}:NAME=VALUE,NAME=VALUE")
    filled = table(("option", "default", "meaning"), wrap=("meaning",))
    for one in row["options"]:
        filled.add_row(f"  {one['name']}", _text(one["default"]), one["meaning"])
    out.print(filled)
    out.print("\nexample")
    out.print(f"  {row['example']}", soft_wrap=True)


def _text(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
