"""What a tracker is: settings of the user's, from which each fit opens a session of its own. One small file per tracker.

    tracker.open(about)          a fit has begun: its name, parameters and folder
    session.log(kind, rows)      figures by step: `steps` (loss), `epochs`, `live` (rank 0's share, about once per second)
    session.end(run, page)       the record, and the report where the tracker keeps files
    session.close(status)

They are called in a thread of their own (writer.py) and may raise: that switches the tracker off and never ends a run.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...errors import BadInput
from .figures import EPOCHS, STEPS, epoch_row, step_row

if TYPE_CHECKING:
    from ..run import Run
    from .writer import Writer

Row = Mapping[str, Any]  # figures by name; `step` says of which step


class About(NamedTuple):
    """A fit when it begins."""

    name: str
    parameters: Mapping[str, Any]
    folder: Path | None = None  # the run's own
    group: str | None = None  # the comparison it is a row of

    def place(self, asked: str | os.PathLike[str] | None) -> Path:
        """Where files go: into the folder that was asked for, else into the run's."""
        place = Path(asked) if asked is not None else self.folder
        if place is None:  # of a hook; `check` refuses a fit without one
            raise BadInput("it has no folder to write to; give it one, as in Csv(folder)")
        place.mkdir(parents=True, exist_ok=True)
        return place


class Session(ABC):
    """One fit as a tracker keeps it."""

    where: str | None = None  # where people find it, if that is not plain

    @abstractmethod
    def log(self, kind: str, rows: Sequence[Row]) -> None: ...

    @abstractmethod
    def end(self, run: Run, page: str | None) -> None: ...

    @abstractmethod
    def close(self, status: str) -> None:
        """`status` is that of the record: done, failed or stopped."""


class Tracker(ABC):
    """Also a pair of hooks: `fit(on_step=tracker.on_step, on_epoch=tracker.on_epoch)`, and `tracker.close()` at the end."""

    name: ClassVar[str]
    package: ClassVar[str | None] = None  # what must be installed
    needs_folder: ClassVar[bool] = False
    keeps_page: ClassVar[bool] = False
    folder: str | os.PathLike[str] | None = None  # where the user wants its files, instead of in the run's folder
    _hooked: Writer | None = None

    @abstractmethod
    def open(self, about: About) -> Session: ...

    def check(self, run_dir: str | os.PathLike[str] | None) -> None:
        """Refuse what cannot work, before anything starts. The package is looked for, not imported: that takes seconds."""
        if self.package is not None and not installed(self.package):
            wanted = f"needs the package {self.package}; pip install 'manyhands[{self.name}]'"
            raise BadInput(f"--log {self.name} {wanted}")
        if self.needs_folder and run_dir is None and self.folder is None:
            raise BadInput(f"--log {self.name} needs a folder to write to; give run_dir (--run-dir)")

    def load(self) -> None:
        """Import what it needs, which takes seconds: before a fit begins, so that its steps have the machine to themselves.
        What goes wrong here is told when the tracker is opened."""
        with contextlib.suppress(Exception):
            importlib.import_module(self.package or __name__)

    # ------------------------------------------------------------ as hooks

    def on_step(self, figures: Row) -> None:
        self._hook(STEPS, step_row(figures))

    def on_epoch(self, figures: Row) -> None:
        self._hook(EPOCHS, epoch_row(figures, figures.get("step")))

    def close(self) -> None:
        """Write what the hooks have seen, and end their session."""
        if self._hooked is not None:
            self._hooked.close("done")
            self._hooked = None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hook(self, kind: str, row: Row) -> None:
        from .writer import Writer

        if self._hooked is None:
            self._hooked = Writer(self, About("fit", {}))
        self._hooked.log(kind, [row])


def installed(package: str) -> bool:
    """Whether there is such a package. A mere folder of that name does not count: wandb leaves one where it has run."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None
