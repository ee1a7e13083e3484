"""report(): one self-contained HTML page from runs. It works from disk, offline, and fetches nothing.

    runs or their paths -> rows, sentences, charts -> one file: text first, then data, plotly.js and page.js

A content security policy in the page lets only the two scripts written there run (by their digests) and
nothing be fetched, so that no string of a record can become code; every such string is escaped all the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..record.run import RECORD_FILE, Run
from ..record.whole_file import whole
from . import words
from .comparing import baselines
from .comparison_table import columns, comparison_rows
from .run_facts import commands, common_facts, machines, run_facts, title_of

Stored = Run | str | os.PathLike[str]


def report(
    runs: Sequence[Stored] | Stored,
    path: str | os.PathLike[str] = "report.html",
    title: str | None = None,
    target: float | None = None,
) -> Path:
    """Write the page of these runs (Run objects, run folders or folders of run folders) and say where it is.

    `target`, an accuracy of 0..1, adds the seconds each run took to reach it.
    """
    chosen = [runs] if isinstance(runs, Run | str | os.PathLike) else runs
    loaded = [run for entry in chosen for run in _read(entry)]
    if not loaded:
        raise BadInput("nothing to report: no runs were given; name run folders, or runs from fit() or compare()")
    file = Path(path)
    if file.is_dir():
        file = file / "report.html"
    text = page(loaded, title, target)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole(file) as scratch:
            scratch.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise BadInput(f"the report cannot be written to {file}: {problem.strerror}; choose another path") from None
    return file.resolve()


def _read(entry: Stored) -> list[Run]:
    if isinstance(entry, Run):
        return [entry]
    folder = Path(entry)
    inside = sorted(folder.glob(f"*/{RECORD_FILE}")) if folder.is_dir() else []
    if inside and not (folder / RECORD_FILE).exists():
        return sorted((Run.load(file, weights=False) for file in inside), key=lambda run: str(run.started))
    return [Run.load(folder, weights=False)]


def page(runs: Sequence[Run], title: str | None = None, target: float | None = None) -> str:
    """The whole page as text."""
    from . import learning_charts as learning  # plotly is loaded only where a page is made
    from . import machine_charts as machine
    from . import step_charts as step
    from .chart import series

    shown = series(runs)
    sections = {
        "speed": [machine.speed_chart(shown)],
        "learning": [draw(shown) for draw in (learning.loss_by_time, learning.loss_by_steps, learning.accuracy_chart)],
        "step": [step.phases_chart(shown), *step.timelines(shown)],
        "machine": [machine.memory_chart(shown), machine.usage_chart(shown)],
        "quality": [learning.classes_chart(shown), learning.staleness_chart(shown)],
    }
    rows = comparison_rows(runs, target)
    named = [(item.name, item.run) for item in shown]
    return str(
        _template().render(
            title=title or title_of(runs),
            contents=CONTENTS,
            sentences=words.sentences(runs),
            facts=common_facts(runs),
            caption=_caption(runs, target),
            columns=[column for column in columns(rows, target) if column.key != "note"],  # it stands under the name
            rows=rows,
            sections=sections,
            runs=[(name, run.status, run_facts(run)) for name, run in named],
            commands=commands(named),
            machines=machines(named),
            css=_resource("page.css"),
            scripts=[(_digest(text), text) for text in (_plotly(), _resource("page.js"))],
            chart_data=[
                {"id": chart.id, **json.loads(chart.drawing.figure.to_json(engine="json"))}
                for charts in sections.values()
                for chart in charts
                if chart.drawing is not None
            ],
        )
    )


CONTENTS = {
    "summary": "Summary",
    "speed": "Speed",
    "learning": "Learning",
    "step": "Inside a step",
    "machine": "Machine",
    "quality": "Classes and staleness",
    "runs": "Each run",
    "repeat": "Repeat it",
}


def _caption(runs: Sequence[Run], target: float | None) -> str:
    bases = {words.process(singles[0]) for run in runs if (singles := baselines(run, runs))}
    caption = f"Speed-up is over {bases.pop()}; efficiency is speed-up per rank." if len(bases) == 1 else ""
    if target is not None:
        caption += f" The target is a test accuracy of {100 * target:g} %; its time is that of training steps."
    return caption


@cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("report.html.jinja")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _resource(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("\r\n", "\n")
