"""whole(): a file appears whole or not at all, and one that could not be written leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART = ".part"


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """The name to write under; it becomes `file` once everything is written. Killed meanwhile, NAME.part is left."""
    scratch = file.with_name(file.name + PART)
    try:
        yield scratch
        os.replace(scratch, file)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
