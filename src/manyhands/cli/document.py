"""`--json`: standard output holds one JSON document and nothing else.

What a task, a library or a rank prints meanwhile goes to standard error, whether it writes to Python's `sys.stdout` or to
the descriptor below it: ranks inherit that descriptor.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import typer

_out: TextIO | None = None  # standard output, while everybody else's goes to standard error


def keep_for_document(context: typer.Context, wanted: bool) -> bool:
    """The callback of `--json`: until the command is over, standard output is the document's alone."""
    if wanted and not context.resilient_parsing:
        closing = contextlib.ExitStack()
        closing.enter_context(_kept())
        context.call_on_close(closing.close)
    return wanted


def write_document(text: str) -> None:
    """The one document of a command."""
    print(text, file=_out or sys.stdout, flush=True)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    global _out
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    before: Any = _out
    try:
        with contextlib.redirect_stdout(sys.stderr), os.fdopen(kept, "w", encoding="utf-8", closefd=False) as _out:
            yield
    finally:
        _out = before
        os.dup2(kept, 1)
        os.close(kept)
