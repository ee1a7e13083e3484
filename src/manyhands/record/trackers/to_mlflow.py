"""Figures for MLflow, through its client: the caller's own active run and settings stay as they are.

MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and `mlflow.set_tracking_uri` are kept to. Without any of them figures go to a
store in the working folder: mlflow's own default (SQLite) where SQLAlchemy is installed, as with the whole mlflow, else
files in `mlruns`, the only local store of mlflow-skinny.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract import About, Row, Session, Tracker, installed
from .figures import environment, numbers, only_numbers, texts

if TYPE_CHECKING:
    from ..run import Run

EXPERIMENT = "manyhands"
GROUP = "manyhands.comparison"  # the tag that the rows of a comparison share
METRICS, PARAMETERS = 1000, 100  # that MLflow takes in one request
LONGEST = 500  # characters of a parameter, in every store
FILES_ALLOWED = "MLFLOW_ALLOW_FILE_STORE"


@dataclass
class Mlflow(Tracker):
    """What is given here comes before the environment's."""

    name = "mlflow"
    package = "mlflow"
    keeps_page = True

    uri: str | None = None
    experiment: str | None = None

    def open(self, about: About) -> Session:
        client = self._client()
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = client.get_experiment_by_name(name)
        number = found.experiment_id if found is not None else client.create_experiment(name)
        tags = {GROUP: about.group} if about.group is not None else {}
        session = _Logged(client, client.create_run(number, run_name=about.name, tags=tags).info.run_id)
        session.parameters(about.parameters)
        return session

    def _client(self) -> Any:
        import mlflow

        if self.uri is not None or mlflow.is_tracking_uri_set() or installed("sqlalchemy"):
            return mlflow.MlflowClient(self.uri)
        with _files_allowed():
            return mlflow.MlflowClient(Path("mlruns").absolute().as_uri())


@contextlib.contextmanager
def _files_allowed() -> Iterator[None]:
    """mlflow makes a store of files only where this variable says so, and asks once."""
    before = os.environ.get(FILES_ALLOWED)
    os.environ[FILES_ALLOWED] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FILES_ALLOWED]
        else:
            os.environ[FILES_ALLOWED] = before


class _Logged(Session):
    def __init__(self, client: Any, run_id: str):
        self._client, self._run_id = client, run_id
        self.where = f"run {run_id} of {client.tracking_uri}"

    def parameters(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        named = [Param(_name(name), str(value)[:LONGEST]) for name, value in values.items()]
        for start in range(0, len(named), PARAMETERS):
            self._client.log_batch(self._run_id, params=named[start : start + PARAMETERS])

    def log(self, kind: str, rows: Sequence[Row]) -> None:
        self._metrics([(only_numbers(row), row["step"]) for row in rows])

    def end(self, run: Run, page: str | None) -> None:
        self._metrics([(numbers(run), run.steps)])
        self.parameters(environment(run))
        for name, value in texts(run).items():
            self._client.set_tag(self._run_id, name, value)
        if page is not None:
            self._client.log_text(self._run_id, page, "report.html")

    def _metrics(self, rows: Sequence[tuple[Mapping[str, float], int]]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        every = [
            Metric(_name(name), value, now, step) for row, step in rows for name, value in row.items() if name != "step"
        ]
        for start in range(0, len(every), METRICS):
            self._client.log_batch(self._run_id, metrics=every[start : start + METRICS])

    def close(self, status: str) -> None:
        ended = {"failed": "FAILED", "stopped": "KILLED"}
        self._client.set_terminated(self._run_id, ended.get(status, "FINISHED"))


def _name(name: str) -> str:
    """A name that MLflow takes: those of classes may be anything."""
    parts = (re.sub(r"[^\w. :-]", "_", part) for part in name.split("/"))
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)
