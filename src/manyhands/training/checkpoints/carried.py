"""Checkpoints of ranks that do not see the caller's folder: they hand them over, and the caller writes them.

Whether they see it is tried: the caller leaves a file there with a name that nobody else has, and the rank that leads
looks for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...world.engines.engine import Engine
from ..settings import FitSettings
from .checkpoint import Checkpoint
from .writer import Writer, not_written


class HandedOver:
    """On the rank: in the place of a Writer."""

    def __init__(self, tell: Callable[[str, Any], None]):
        self._tell = tell

    def write(self, checkpoint: Checkpoint) -> None:
        self._tell("checkpoint", checkpoint)

    def wait(self) -> None:
        """The caller waits for what it writes."""


class CarriedCheckpoints:
    """On the caller's side."""

    def __init__(self, settings: FitSettings, engine: Engine, tell: Callable[[str, Any], None]):
        self._folder = settings.checkpoints if settings.every is not None and engine.elsewhere else None
        self._tell = tell
        self._writer: Writer | None = None

    @contextmanager
    def while_running(self, start: Checkpoint | None) -> Iterator[Path | None]:
        """Gives the file to look for, where ranks are elsewhere. At the end all that was handed over is on the disk."""
        if self._folder is None:
            yield None
            return
        self._writer = Writer(self._folder, self._failed, [start.step] if start else [])
        marker = self._folder.parent / f".manyhands-{secrets.token_hex(8)}"
        with suppress(OSError):  # a full disk: checkpoints will say so
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        try:
            yield marker
        finally:
            self._writer.wait()
            with suppress(OSError):
                marker.unlink()

    def keep(self, checkpoint: Checkpoint) -> None:
        if self._writer is not None:
            self._writer.write(checkpoint)

    def _failed(self, step: int, reason: str) -> None:
        self._tell("fault", not_written(step, reason, None))
