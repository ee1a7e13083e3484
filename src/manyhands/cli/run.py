"""`manyhands run`: a script of one's own, as it is, measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadInput, RankFailed
from .document import write_document
from .inputs import new_folder, typed_command
from .options import AsJson, Quiet


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file; with -m, a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The script's own arguments.")] = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Start N processes, as torchrun does (default: one, as python does)."),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module.")] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to keep the run (default: runs/<date>-<script>-script)."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the run (default: the script's name).")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run your own script, unmodified, and report where its time went."""
    from ..bridges.scripts.measure import Script, measure
    from . import terminal

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadInput(
            f"manyhands run starts the ranks itself (found WORLD_SIZE={os.environ['WORLD_SIZE']}); "
            f"instead of torchrun use: manyhands run --ranks {os.environ['WORLD_SIZE']} {script}"
        )
    wanted = Script(script, tuple(arguments or ()), module, ranks)
    folder = run_dir or new_folder(name or wanted.name, "script")
    wanted.check()
    if not quiet:
        print(f"manyhands: measuring {wanted.name}; to follow it: manyhands watch {folder}", file=sys.stderr)
    try:
        found, code = measure(wanted, folder, name, typed_command(), stdout=sys.stderr.fileno() if as_json else None)
    except (RankFailed, KeyboardInterrupt) as ending:
        stored = getattr(ending, "run", None)
        if stored is not None and as_json:
            write_document(stored.to_json())
        elif stored is not None and stored.steps:
            terminal.show_run(stored)
        raise
    if as_json:
        write_document(found.to_json())
    else:
        terminal.show_run(found)
    raise typer.Exit(code)
