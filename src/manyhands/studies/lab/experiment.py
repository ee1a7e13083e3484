"""An experiment as data: the rows of its table, what each row is measured by, what was published, how the claim is judged.

    EXPERIMENT = Experiment(
        name="loader-workers",
        ...
        parts=lambda scale: [Part("2 workers", "mnist:slow", fit={"loader_workers": 2}, published={"seconds": 34.96}), ...],
        columns=(Column("seconds", "total s", lambda run, others: run.seconds), ...),
        judge=judge,                       # a function of the finished table: does the published claim hold, and why
        curves=(Curve("Test accuracy", "epoch", "accuracy %", accuracy_by_epoch),),
    )

Parts are fits and nothing else, so that an experiment needs no loop of its own; each is repeated with every seed. All
parts with the first seed run before any runs with the second: a machine that slows down meanwhile slows all alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import BadInput
from ...record.run import Run

if TYPE_CHECKING:
    from ...task import Task
    from .table import Table


@dataclass(frozen=True)
class Scale:
    """What there is to run on, and whether it must be quick."""

    quick: bool
    cores: int
    gpus: int

    def ranks(self, most: int = 16) -> list[int]:
        """1, 2, 4, ... as far as there are cores; 1 and 2 on any machine."""
        return [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= max(2, min(self.cores, most))]


@dataclass(frozen=True)
class Part:
    """A row of the table: one fit, repeated with every seed."""

    label: str
    task: str | Callable[[], Task]  # what load_task reads ("mnist:slow"), or a function that makes one
    strategy: str = "single"
    fit: Mapping[str, Any] = field(default_factory=dict)  # keywords of fit: ranks, epochs, loader_workers, threads, ...
    batch_size: int | None = None  # None: the task's own; a task whose rate follows the batch is made for it
    change: Mapping[str, Any] = field(default_factory=dict)  # fields of the task to replace
    train_samples: int | None = None  # the first so many of the training and of the test data; None: all
    test_samples: int | None = None
    published: Mapping[str, float] = field(default_factory=dict)  # by the keys of columns
    seeds: int | None = None  # fewer than the experiment has, where a fit takes long
    cost: float = 1.0  # how long it takes beside the other parts, for the time left

    def __post_init__(self) -> None:
        if not self.label:
            raise BadInput("a part of an experiment needs a label: it names its row and its folder")


@dataclass(frozen=True)
class Column:
    """A figure of every row: `read` gets the run and those of all parts with the same seed, by label."""

    key: str
    heading: str
    read: Callable[[Run, Mapping[str, Run]], float | None]
    form: str = ".2f"  # as for format(); "%" at its end shows a fraction as a percentage

    def __post_init__(self) -> None:
        try:
            format(1.0, self.form)
        except ValueError:  # found now, and not when all fits are done
            raise BadInput(
                f'column "{self.heading}" has the form "{self.form}", which format() does not take for a figure; ".2f" is one'
            ) from None


@dataclass(frozen=True)
class Line:
    """A line of a curve: (x, y, lowest y, highest y) where there were several seeds."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    published: bool = False


@dataclass(frozen=True)
class Curve:
    """A chart: its lines are worked out from the finished table."""

    title: str
    x: str
    y: str
    lines: Callable[[Table], Sequence[Line]]
    logarithmic: str = ""  # "x", "y" or "xy"


@dataclass(frozen=True)
class Verdict:
    """Whether the published claim holds here (None: it cannot be told), what was measured, and why, in words."""

    holds: bool | None
    measured: str  # whole sentences, with the figures
    why: str  # follows a colon, and ends with a full stop


@dataclass(frozen=True)
class Experiment:
    """A published experiment."""

    name: str
    title: str
    claim: str  # a whole sentence
    source: str  # what was published: data, model, settings, machine
    parts: Callable[[Scale], Sequence[Part]]
    columns: Sequence[Column]
    judge: Callable[[Table], Verdict]
    curves: Sequence[Curve] = ()
    seeds: int = 3  # of a whole run; a quick one has `quick_seeds`
    quick_seeds: int = 1
    quick_note: str = ""  # what is reduced with --quick
    takes: tuple[str, str] = ("", "")  # about how long, quick on 2 cores and whole: ("1 min", "9 min on one GPU")
    extra: Callable[[Task, Run], Mapping[str, float | None]] | None = (
        None  # figures to work out once after each fit, kept beside the run: `figures(run)`
    )
    device: str = "auto"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise BadInput(f'an experiment is named in lower-case letters, digits and dashes (found "{self.name}")')
