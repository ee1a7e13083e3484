"""Trackers: where the figures of a fit are logged while it runs. `fit(log="wandb,csv")`, or the objects below in a list."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

from ...errors import BadInput, did_you_mean
from .contract import Tracker
from .to_csv import Csv
from .to_mlflow import Mlflow
from .to_tensorboard import TensorBoard
from .to_wandb import Wandb

__all__ = ["Csv", "Mlflow", "TensorBoard", "Tracker", "Wandb"]

TRACKERS: dict[str, type[Csv] | type[Mlflow] | type[TensorBoard] | type[Wandb]] = {
    kind.name: kind for kind in (Wandb, Mlflow, TensorBoard, Csv)
}
Chosen: TypeAlias = str | Tracker | Sequence[str | Tracker] | None


def trackers_of(log: Chosen, run_dir: str | os.PathLike[str] | None) -> list[Tracker]:
    """What `log=` asks for, checked: unknown names and missing packages are bad input before anything starts."""
    given = log if isinstance(log, list | tuple) else [] if log is None else [log]
    found: list[Tracker] = []
    for entry in given:
        found += [entry] if isinstance(entry, Tracker) else map(_named, _names(entry))
    for tracker in found:
        tracker.check(run_dir)
    doubled = next((one.name for one in found if [each.name for each in found].count(one.name) > 1), None)
    if doubled is not None:
        raise BadInput(f"--log names {doubled} twice; once is enough")
    return found


def _names(entry: object) -> list[str]:
    if not isinstance(entry, str):
        raise BadInput(f'log takes names such as "wandb,csv" or objects of mh.trackers (found {entry!r})')
    return [name.strip() for name in entry.split(",") if name.strip()]


def _named(name: str) -> Tracker:
    if name not in TRACKERS:
        raise BadInput(f'no log named "{name}"{did_you_mean(name, TRACKERS)}')
    return TRACKERS[name]()
