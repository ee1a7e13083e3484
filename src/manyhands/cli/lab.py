"""`manyhands lab`: published experiments, run again on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadInput
from . import FAILED
from .options import AsJson, Quiet


def lab(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An experiment, or a file that defines EXPERIMENT (default: list them)."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use reduced data: at most 4 minutes on 2 cores.")] = False,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many times each fit is repeated (default: the experiment's number)."),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to keep it (default: runs/lab-NAME); what is there is not run again."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a published experiment: does its claim hold here?

    It shows published and measured figures side by side.
    """
    from ..studies.lab.catalogue import experiment, experiments
    from . import lab_tables, terminal

    if name is None:
        if quick or seeds is not None or run_dir is not None:
            raise BadInput("no experiment was named; give its NAME, or list them with: manyhands lab")
        known = experiments()
        if as_json:
            terminal.show_json(
                {"experiments": [{"name": one.name, "title": one.title, "claim": one.claim} for one in known]}
            )
        else:
            lab_tables.show_experiments(known)
        return
    found = experiment(name)  # a misspelt name is refused before torch is imported
    from ..pages.lab_page import write_page
    from ..studies.lab.lab import PAGE_FILE, default_folder
    from ..studies.lab.lab import lab as run_again

    folder = run_dir or default_folder(found.name, quick)
    try:
        result = run_again(name, quick=quick, seeds=seeds, run_dir=folder, progress=not quiet)
    except KeyboardInterrupt:
        print(f"finished fits are kept in {folder}; the same command continues from there", file=sys.stderr)
        raise
    page = write_page(result, folder / PAGE_FILE)
    if as_json:
        terminal.show_json({**result, "report": str(page)})
    else:
        lab_tables.show_experiment(result, page)
    if any(row.get("failed") for row in result["measured"]):
        raise typer.Exit(FAILED)
