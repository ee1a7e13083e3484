"""Figures as TensorBoard's event files: `tensorboard --logdir runs` shows every run that has some."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .contract import About, Row, Session, Tracker
from .figures import environment, numbers, only_numbers, texts

if TYPE_CHECKING:
    from ..run import Run


@dataclass
class TensorBoard(Tracker):
    """`folder`: instead of `tensorboard` in the run's own."""

    name = "tensorboard"
    package = "tensorboard"
    needs_folder = True

    folder: str | os.PathLike[str] | None = None

    def load(self) -> None:
        super().load()
        with contextlib.suppress(Exception):
            import torch.utils.tensorboard  # noqa: F401

    def open(self, about: About) -> Session:
        place = about.place(self.folder)
        return _Events(str(place if self.folder is not None else place / "tensorboard"), about.parameters)


class _Events(Session):
    def __init__(self, place: str, parameters: Mapping[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(place)
        self._text("parameters", parameters)

    def log(self, kind: str, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, value in only_numbers(row).items():
                if name != "step":
                    self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def end(self, run: Run, page: str | None) -> None:
        for name, value in numbers(run).items():
            self._writer.add_scalar(name, value, run.steps)
        self._text("result", {**texts(run), **environment(run)})

    def _text(self, name: str, values: Mapping[str, Any]) -> None:
        """A table; the bars of values are theirs, not the table's."""
        rows = "".join(f"| {key} | {str(value).replace('|', chr(92) + '|')} |\n" for key, value in values.items())
        if rows:
            self._writer.add_text(name, f"| name | value |\n|---|---|\n{rows}")

    def close(self, status: str) -> None:
        self._writer.close()
