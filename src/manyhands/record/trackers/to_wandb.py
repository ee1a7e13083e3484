"""Figures for Weights & Biases. WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY and the rest of the user's settings are kept to.

A run of its own beside any the caller has open (`reinit="create_new"`), and without wandb's hold on the console.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .contract import About, Row, Session, Tracker
from .figures import environment, numbers, texts

if TYPE_CHECKING:
    from ..run import Run

PROJECT = "manyhands"


@dataclass
class Wandb(Tracker):
    """What is given here comes before the environment's; `folder` is where wandb keeps its files."""

    name = "wandb"
    package = "wandb"
    keeps_page = True

    project: str | None = None
    entity: str | None = None
    mode: str | None = None  # online, offline, ...
    folder: str | os.PathLike[str] | None = None

    def open(self, about: About) -> Session:
        import wandb

        place = self.folder if self.folder is not None or "WANDB_DIR" in os.environ else about.folder
        if place is not None:
            os.makedirs(place, exist_ok=True)
        run = wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT") or PROJECT,
            entity=self.entity,
            mode=self.mode,  # type: ignore[arg-type]
            dir=place,
            name=os.environ.get("WANDB_NAME") or about.name,
            group=about.group,
            config=dict(about.parameters),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        run.define_metric("*", step_metric="step")  # figures of one step come at different times
        return _Logged(run)


class _Logged(Session):
    def __init__(self, run: Any):
        self._run = run
        self.where = run.dir.removesuffix("/files") if run.offline else run.url

    def log(self, kind: str, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log({name: value for name, value in row.items() if value is not None})

    def end(self, run: Run, page: str | None) -> None:
        self._run.config.update(environment(run))
        self._run.summary.update({**numbers(run), **texts(run)})
        if page is not None:
            self._keep(page)

    def _keep(self, page: str) -> None:
        import wandb

        artifact = wandb.Artifact(f"report-{self._run.id}", type="report")
        with artifact.new_file("report.html", encoding="utf-8") as file:
            file.write(page)
        self._run.log_artifact(artifact)

    def close(self, status: str) -> None:
        self._run.finish(exit_code=1 if status == "failed" else 0)
