"""`manyhands serve`: a folder of runs in the browser, the running ones as they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    folder: Annotated[Path, typer.Argument(metavar="RUNS_FOLDER", help="The folder where runs are kept.")] = Path(
        "runs"
    ),
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            metavar="PORT",
            help="The port to listen on; 0 takes any free one (default: 8765, or a free one).",
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The loopback address to listen on.")] = "127.0.0.1",
) -> None:
    """Show the runs of a folder in the browser, and running ones as they train. Open the address it prints."""
    from ..pages.live.server import serve as serve_pages

    serve_pages(folder, host, port)
