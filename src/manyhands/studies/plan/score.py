"""score(): how the forecasts of a runs folder turned out, from its ledger and its runs alone. Nothing is trained."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ...record.exports import find_runs
from ...record.ledger import Entry, read
from ...record.matching import Forecasts, ledger_folders
from ...record.run import Run, finite
from ...record.score_summary import summary
from ...record.scores import Score
from ...record.scores import score as score_run


def score(folder: str | os.PathLike[str] = "runs") -> dict[str, Any]:
    """What `manyhands plan --score --json` prints: `scores`, one per run that had a forecast, newest run first; their
    `summary`, and the same figures `by_strategy`.

    Beside the figures of `record.score_summary.summary`, the summary has `forecasts` (how many the folder's own ledger
    keeps) and `refused_but_ran` (runs that finished although their forecast was that they could not).
    """
    scores, refused_but_ran = matched(folder)
    found = summary(scores)
    own = {"forecasts": len(read(folder)), "refused_but_ran": refused_but_ran}
    document: dict[str, Any] = finite(
        {
            "scores": [one.record() for one in scores],
            "summary": {**found["overall"], **own},
            "by_strategy": found["by_strategy"],
        }
    )
    return document


def matched(folder: str | os.PathLike[str]) -> tuple[list[Score], int]:
    """The scores of all runs below a folder, and how many runs their forecasts had ruled out.

    A run is held against the forecast that it learnt when it was kept (the nearest ledger that has one), or failing that
    against one in the ledger of `folder` itself.
    """
    root = Path(os.path.abspath(folder))
    ledger: Callable[[Path], Forecasts] = cache(lambda place: Forecasts(read(place)))
    scores, refused_but_ran = [], 0
    for run in find_runs(root, status="done", series=False):
        entry = _forecast_of(run, root, ledger)
        if entry is not None and (found := score_run(entry, run)) is not None:
            scores.append(found)
        refused_but_ran += entry is not None and not entry.forecast.feasible
    return scores, refused_but_ran


def _forecast_of(run: Run, root: Path, ledger: Callable[[Path], Forecasts]) -> Entry | None:
    assert run.folder is not None
    places = dict.fromkeys([*ledger_folders(run, run.folder), root])
    return next((entry for place in places if (entry := ledger(place).before(run)) is not None), None)
