"""report(): one self-contained HTML page from runs. It works from disk, offline, and fetches nothing.

    runs or their paths -> rows, sentences, charts -> one file: text first, then data, plotly.js and page.js

A content security policy in the page lets only the three scripts written here run (by their digests) and
nothing be fetched, so that no string of a record can become code; every such string is escaped all the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..record.run import RECORD_FILE, Run
from ..record.whole_file import whole
from . import words
from .details import environment, repeat, run_details
from .figures import Column, Row, baselines, columns, kind, table

if TYPE_CHECKING:
    from .canvas import Chart

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
    place = Path(path)
    if place.is_dir():
        place = place / "report.html"
    text = page(loaded, title, target)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole(place) as scratch:
            scratch.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise BadInput(f"the report cannot be written to {place}: {problem.strerror}; choose another path") from None
    return place.resolve()


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
    from . import charts  # plotly is loaded only where a page is made
    from . import step_charts as steps
    from . import usage_charts as hardware
    from .canvas import series

    shown = series(runs)
    sections = (
        ("speed", "Speed", [charts.speed_chart(shown)]),
        (
            "learning",
            "Learning",
            [f(shown) for f in (charts.loss_by_time, charts.loss_by_steps, charts.accuracy_chart)],
        ),
        ("step", "Inside a step", [steps.phases_chart(shown), *steps.timelines(shown)]),
        ("machine", "Machine", [hardware.memory_chart(shown), hardware.usage_chart(shown)]),
        ("quality", "Classes and staleness", [charts.classes_chart(shown), charts.staleness_chart(shown)]),
    )
    named = list(zip([item.name for item in shown], runs, strict=True))
    contents = [
        ("summary", "Summary"),
        *((key, heading) for key, heading, _ in sections),
        ("runs", "Each run"),
        ("repeat", "Repeat it"),
    ]
    body = [
        _header(runs, title or _title(runs)),
        _contents(contents),
        "<main>",
        _section("summary", "Summary", _summary(runs, target)),
        *(_section(key, heading, _charts(found)) for key, heading, found in sections),
        _section("runs", "Each run", run_details(named)),
        _section("repeat", "Repeat it", repeat(named) + environment(named)),
        "</main>",
    ]
    drawn = [chart for _, _, found in sections for chart in found if chart.figure is not None]
    return _document(title or _title(runs), "\n".join(body), drawn)


# -- head and summary -------------------------------------------------------------------------------------------


def _title(runs: Sequence[Run]) -> str:
    tasks = list(dict.fromkeys(str(run.task or "a task") for run in runs))
    what = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    labels = {run.label for run in runs}
    return f"{what} under {labels.pop() if len(labels) == 1 else f'{len(labels)} strategies'}"


def _header(runs: Sequence[Run], title: str) -> str:
    verdict, *rest = [words.verdict(runs), *words.remarks(runs)]
    first = " ".join([verdict, *rest[:1]])
    more = "".join(f"<li>{escape(sentence)}</li>" for sentence in rest[1:])
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(runs))
    return (
        f'<header><p class="kind">manyhands report</p><h1>{escape(title)}</h1>'
        f'<p class="conclusion">{escape(first)}</p>'
        + (f'<ul class="remarks">{more}</ul>' if more else "")
        + f'<ul class="facts">{facts}</ul></header>'
    )


def _facts(runs: Sequence[Run]) -> list[str]:
    """What all runs have in common, in a few words."""

    def common(values: Iterable[Any]) -> Any:
        found = {value for value in values if value is not None}
        return found.pop() if len(found) == 1 else None

    machines = [run.environment or {} for run in runs]
    batch, cores = common(run.batch_size for run in runs), common(machine.get("cores") for machine in machines)
    device = common(kind(run) for run in runs if run.device)
    processor = common(machine.get("gpu" if device == "cuda" else "cpu") for machine in machines)
    torch = common(machine.get("torch") for machine in machines)
    days = sorted({str(run.started)[:10] for run in runs if run.started})
    return [
        fact
        for known, fact in (
            (batch, f"batch of {batch}"),
            (processor, str(processor)),
            (cores, f"{cores} cores"),
            (torch, f"torch {torch}"),
            (days, days[0] if len(set(days)) == 1 else f"{days[0]} to {days[-1]}" if days else ""),
        )
        if known
    ]


def _contents(entries: Sequence[tuple[str, str]]) -> str:
    links = "".join(f'<li><a href="#{key}">{escape(heading)}</a></li>' for key, heading in entries)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _section(key: str, heading: str, inner: str) -> str:
    title = f'<h2 id="{key}-heading">{escape(heading)}</h2>'
    return f'<section id="{key}" aria-labelledby="{key}-heading">{title}\n{inner}</section>'


def _summary(runs: Sequence[Run], target: float | None) -> str:
    rows = table(runs, target)
    shown = [column for column in columns(rows, target) if column.key != "note"]  # notes stand under the name
    head = "".join(
        f'<th scope="col" aria-sort="none"{_class(column)}><button type="button">{escape(column.heading)}</button></th>'
        for column in shown
    )
    body = "".join(f'<tr class="{escape(str(row["status"]), quote=True)}">{_cells(row, shown)}</tr>' for row in rows)
    bases = {words.process(singles[0]) for run in runs if (singles := baselines(run, runs))}
    caption = f"Speed-up is over {bases.pop()}; efficiency is speed-up per rank." if len(bases) == 1 else ""
    if target is not None:
        caption += f" The target is a test accuracy of {100 * target:g} %; its time is that of training steps."
    return (
        f'<table class="summary" id="summary-table"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cells(row: Row, shown: Sequence[Column]) -> str:
    """A row's figures; where there are none, the reason takes their place."""
    cells = []
    for position, column in enumerate(shown):
        if column.key == "samples_per_second" and row["samples_per_second"] is None and row["status"] != "done":
            cells.append(
                f'<td class="why" colspan="{len(shown) - position}" data-sort="">{escape(str(row["note"]))}</td>'
            )
            break
        value, text = row[column.key], escape(column.text(row))
        tag, scope = "td", ""
        if column.key == "label":
            tag, scope = "th", ' scope="row"'
            text += f"<small>{escape(row['note'])}</small>" if row["note"] and row["samples_per_second"] else ""
        sort = "" if value is None else escape(str(value), quote=True)
        cells.append(
            f'<{tag}{scope}{_class(column)} data-label="{escape(column.heading)}" data-sort="{sort}">{text}</{tag}>'
        )
    return "".join(cells)


def _class(column: Column) -> str:
    return f' class="{"number" if column.numeric else "text"}"'


# -- charts -----------------------------------------------------------------------------------------------------


def _charts(found: Sequence[Chart]) -> str:
    paired = sum(chart.half for chart in found if chart.figure is not None) > 1
    return f'<div class="charts">{"".join(_chart(chart, paired) for chart in found)}</div>'


def _chart(chart: Chart, paired: bool) -> str:
    if chart.figure is None:
        return f'<p class="absent"><strong>{escape(chart.title)}.</strong> {escape(chart.caption)}</p>'
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in chart.headings)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in chart.rows
    )
    return (
        f'<figure class="chart{" half" if chart.half and paired else ""}" aria-labelledby="{chart.id}-title">'
        f'<h3 class="unseen" id="{chart.id}-title">{escape(chart.title)}</h3>'
        f'<div id="chart-{chart.id}" class="plot" role="group" aria-describedby="{chart.id}-caption"'
        f' style="min-height:{chart.figure.layout.height + 120}px"></div>'
        f'<figcaption id="{chart.id}-caption">{escape(chart.caption)}</figcaption>'
        "<details><summary>Figures</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Figures: {escape(chart.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details></figure>"
    )


def _document(title: str, body: str, drawn: Sequence[Chart]) -> str:
    data = [{"id": chart.id, "legend": chart.legend, **_plain(chart.figure)} for chart in drawn]
    scripts = [_plotly(), _resource("page.js")]
    allowed = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>{escape(title)}: manyhands report</title>",
            f"<style>{_resource('page.css')}</style></head><body>",
            '<a class="skip" href="#summary">Skip to the summary</a>',
            body,
            '<noscript><p class="absent">Only the charts need JavaScript.</p></noscript>',
            f'<script type="application/json" id="chart-data">{_json(data)}</script>',
            *(f"<script>{text}</script>" for text in scripts),
            "</body></html>",
        )
    )


def _plain(figure: Any) -> dict[str, Any]:
    return dict(json.loads(figure.to_json(engine="json")))


def _json(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("\r\n", "\n")
