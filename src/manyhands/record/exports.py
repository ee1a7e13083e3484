"""Stored runs: find the records below a folder, and write them for other tools."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from ..errors import BadInput
from .run import RECORD_FILE, Run

LOGS = ("csv", "tensorboard")


def find_runs(root: Path, task: str | None = None, strategy: str | None = None, status: str | None = None) -> list[Run]:
    """Every readable run below a folder, newest first; what is no record is passed over."""
    if not root.is_dir():
        raise BadInput(f"no folder {root}; runs are kept in runs/ unless --run-dir said otherwise")
    found = []
    for record in root.rglob(RECORD_FILE):
        try:
            run = Run.load(record, weights=False)
        except BadInput:
            continue
        wanted = ((task, run.task.split(":")[0]), (strategy, run.strategy), (status, run.status))
        if all(asked is None or asked == has for asked, has in wanted):
            found.append(run)
    return sorted(found, key=lambda run: run.started or "", reverse=True)


def check_logs(names: str | None) -> list[str]:
    """The kinds of logs asked for, as `tensorboard,csv`."""
    chosen = [name.strip() for name in (names or "").split(",") if name.strip()]
    for name in chosen:
        if name not in LOGS:
            raise BadInput(f'no log named "{name}"; there are: {", ".join(LOGS)}')
    if "tensorboard" in chosen:
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise BadInput("--log tensorboard needs the package tensorboard; pip install tensorboard") from None
    return chosen


def write_logs(run: Run, folder: str | os.PathLike[str], logs: list[str]) -> None:
    """The loss of each step and the figures of each epoch, in the formats asked for."""
    place = Path(folder)
    if "csv" in logs:
        _write_csv(place / "steps.csv", ["step", "loss"], [[step + 1, loss] for step, loss in enumerate(run.losses)])
        keys = ["epoch", "loss", "seconds", "samples", "learning_rate", "test_accuracy", "test_loss"]
        keys = list(dict.fromkeys([*keys, *(key for entry in run.epochs for key in entry)]))
        _write_csv(place / "epochs.csv", keys, [[entry.get(key) for key in keys] for entry in run.epochs])
    if "tensorboard" in logs:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(place / "tensorboard")) as writer:
            for step, loss in enumerate(run.losses, start=1):
                if loss is not None:
                    writer.add_scalar("loss", loss, step)
            for entry in run.epochs:
                for key, value in entry.items():
                    if value is not None and (key == "learning_rate" or key.startswith(("test_", "ema_test_"))):
                        writer.add_scalar(key, value, entry["epoch"])
            for phase, value in (run.phases_ms or {}).items():
                if value is not None:
                    writer.add_scalar(f"phases_ms/{phase}", value, run.steps)


def _write_csv(path: Path, headings: list[str], rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(headings)
        writer.writerows(rows)
