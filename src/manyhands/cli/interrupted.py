"""What `manyhands train` says after Ctrl-C: what was measured so far, and how to go on."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from .document import write_document


def show_interrupted(ending: KeyboardInterrupt, folder: Path, as_json: bool) -> None:
    """The record as far as it is known, and the command that continues the run, where a checkpoint was written."""
    from . import terminal

    run = getattr(ending, "run", None)  # run_fit hands it over
    if run is None:
        return  # interrupted before there was anything to keep
    if as_json:
        write_document(run.to_json())
    elif run.steps:
        terminal.show_run(run)
    print(f"manyhands: {_way_on(folder)}", file=sys.stderr)


def _way_on(folder: Path) -> str:
    from ..record.run_folder import CHECKPOINTS
    from ..training.checkpoints.read import latest

    found = latest(folder / CHECKPOINTS)[0]
    if found is None:
        return (
            "no checkpoint was written, so this run cannot be resumed; "
            "with --checkpoint-every 30s there is a checkpoint every 30 seconds"
        )
    return f"to resume from step {found.step}: {resume_command(sys.argv[1:], folder)}"


def resume_command(words: list[str], folder: Path) -> str:
    """The command that was typed, with the run's folder and --resume."""
    given = {word.partition("=")[0] for word in words}
    more = [] if "--run-dir" in given else ["--run-dir", str(folder)]
    return shlex.join(["manyhands", *words, *more, *([] if "--resume" in given else ["--resume"])])
