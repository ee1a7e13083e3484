"""report(): one self-contained HTML page from runs. It works from disk, offline, and fetches nothing.

runs or their paths -> rows, sentences, charts -> one file (standalone.py)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import BadInput
from ..record.run import RECORD_FILE, Run
from . import standalone, words
from .charts import SECTIONS, comparison_charts, drawn
from .comparing import baselines, names
from .comparison_table import columns, comparison_rows, legend
from .forecasts import forecast_sentence
from .phrases import capital, process
from .run_facts import commands, common_facts, machines, run_facts, title_of

Stored = Run | str | os.PathLike[str]


def report(
    runs: Sequence[Stored] | Stored,
    path: str | os.PathLike[str] = "report.html",
    title: str | None = None,
    target: float | None = None,
    unreadable: list[str] | None = None,
) -> Path:
    """Write the page of these runs (Run objects, run folders or folders of run folders) and say where it is.

    `target`, an accuracy of 0..1, adds the seconds each run took to reach it. A record that cannot be read is refused where
    it was named itself; below a folder it is left out, and why goes to the page and to `unreadable`.
    """
    chosen = [runs] if isinstance(runs, Run | str | os.PathLike) else runs
    problems: list[str] = []
    loaded = [run for entry in chosen for run in _read(entry, problems)]
    if unreadable is not None:
        unreadable.extend(problems)
    if not loaded and problems:
        raise BadInput(problems[0])
    if not loaded:
        raise BadInput("nothing to report: no runs were given; name run folders, or runs from fit() or compare()")
    file = Path(path)
    if file.is_dir():
        file = file / "report.html"
    return standalone.write(page(loaded, title, target, left_out=problems), file)


def _read(entry: Stored, problems: list[str]) -> list[Run]:
    if isinstance(entry, Run):
        return [entry]
    folder = Path(entry)
    inside = sorted(folder.glob(f"*/{RECORD_FILE}")) if folder.is_dir() else []
    inside = inside or sorted(folder.glob(f"*/*/{RECORD_FILE}"))  # that of an experiment of the lab
    if inside and not (folder / RECORD_FILE).exists():
        found = []
        for file in inside:
            try:
                found.append(Run.load(file, weights=False))
            except BadInput as problem:  # one of many, and nobody asked for that one
                problems.append(str(problem))
        return sorted(found, key=lambda run: str(run.started))
    return [Run.load(folder, weights=False)]


def page(
    runs: Sequence[Run],
    title: str | None = None,
    target: float | None = None,
    render: Callable[..., str] = standalone.render,
    left_out: Sequence[str] = (),
) -> str:
    """The whole page as text. `render` puts what it says into its template: as one file, or as a server shows it."""
    sections = comparison_charts(runs)
    rows = comparison_rows(runs, target)
    shown = [column for column in columns(rows, target) if column.key != "note"]  # it stands under the name
    named = list(zip(names(runs), runs, strict=True))
    return render(
        "report.html.jinja",
        [chart for charts in sections.values() for chart in charts],
        title=title or title_of(runs),
        contents=CONTENTS,
        sentences=words.sentences(runs) + [f"Left out: {problem}." for problem in left_out],
        facts=common_facts(runs),
        caption=" ".join([*_caption(runs, target), *(f"{meaning}." for meaning in map(capital, legend(shown, rows)))]),
        columns=shown,
        rows=list(enumerate(rows)),
        chosen=drawn(runs, sections),
        sections=sections,
        runs=[(name, run.status, run_facts(run)) for name, run in named],
        commands=commands(named),
        machines=machines(named),
    )


CONTENTS = {"summary": "Summary", **SECTIONS, "runs": "Each run", "repeat": "Repeat it"}


def _caption(runs: Sequence[Run], target: float | None) -> list[str]:
    """What the figures of the table are over."""
    bases = {process(singles[0]) for run in runs if (singles := baselines(run, runs))}
    said = [f"Speed-up is over {bases.pop()}; {_efficiency(runs)}."] if len(bases) == 1 else []
    if target is not None:
        said.append(f"The target is a test accuracy of {100 * target:g} %; its time is that of training steps.")
    forecasts = forecast_sentence(runs)
    return [*said, forecasts] if forecasts else said


def _efficiency(runs: Sequence[Run]) -> str:
    if len({run.threads for run in runs if run.strategy != "single"}) > 1:
        return "efficiency is that over one process with as many threads, per rank"
    return "efficiency is speed-up per rank"
