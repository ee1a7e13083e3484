"""The page of an experiment: the verdict, published figures beside measured ones, and the curves.

result.json as plain data -> verdict, table, charts (lab_charts.py) -> one file (standalone.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from . import standalone
from .figures import number
from .lab_charts import curves
from .phrases import capital

Result = Mapping[str, Any]
MARKS = {True: ("✓", "The claim holds here"), False: ("✗", "The claim does not hold here")}
UNKNOWN = ("?", "Whether the claim holds cannot be told here")
CONTENTS = {"figures": "Figures", "curves": "Curves", "runs": "The runs", "repeat": "Repeat it"}
MACHINE = {"cpu": "processor", "cores": "cores", "gpu": "GPU", "torch": "torch", "python": "Python", "system": "system"}


def write_page(result: Result, file: Path) -> Path:
    """Write the page of what `lab` returned, and say where it is."""
    return standalone.write(lab_page(result), file)


def lab_page(result: Result) -> str:
    """The whole page as text."""
    charts, rows = curves(result["curves"]), table_rows(result)
    return standalone.render(
        "lab.html.jinja",
        charts,
        result=result,
        contents={key: name for key, name in CONTENTS.items() if charts or key != "curves"},
        mark=MARKS.get(result["holds"], UNKNOWN),
        columns=[{**column, "published": key in _published_keys(result)} for key, column in _columns(result)],
        rows=rows,
        spread=any(spread for row in rows for *_, spread in row["cells"].values()),
        charts=charts,
        finding=capital(result["finding"]),
        claim=capital(result["claim"]),
        seeds=seeds_text(result),
        machine=machine_facts(result),
        runs=[_runs(row) for row in result["runs"]],
    )


def _runs(row: Mapping[str, Any]) -> dict[str, Any]:
    """The folder of a row, and a link to each of its runs: the page lies beside them."""
    parts = [folder.rpartition("/") for folder in row["folders"]]
    folder = ", ".join(dict.fromkeys(above for above, _, _ in parts))
    links = [(name, "./" + quote(f"{above}{slash}{name}/run.json")) for above, slash, name in parts]
    return {**row, "folder": folder, "links": links}


def table_rows(result: Result) -> list[dict[str, Any]]:
    """Each row's label and problem, and by the keys of columns (published, measured, from lowest to highest) as text."""
    published = {row["row"]: row for row in result["published"]}
    rows = []
    for row in result["measured"]:
        known = published.get(row["row"], {})
        cells = {
            key: (figure_text(known.get(key), column["form"]), *_measured(row.get(key), column["form"]))
            for key, column in _columns(result)
        }
        rows.append({"label": row["row"], "problem": row.get("problem"), "cells": cells})
    return rows


def _columns(result: Result) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return [(column["key"], column) for column in result["columns"]]


def _published_keys(result: Result) -> set[str]:
    return {key for row in result["published"] for key in row}


def _measured(figure: Mapping[str, Any] | None, form: str) -> tuple[str, str]:
    """The median, and from lowest to highest where the seeds differ as far as the figures show."""
    if not figure:
        return "", ""
    low, high = (figure_text(figure[end], form) for end in ("lowest", "highest"))
    return figure_text(figure["median"], form), f"{low} to {high}" if low != high else ""


def figure_text(value: Any, form: str) -> str:
    """A figure in the form of its column; nothing where it is not known."""
    known = number(value)
    return "" if known is None else format(known, form).replace("%", " %")


def seeds_text(result: Result) -> str:
    """How often everything was repeated."""
    counts = {
        figure["seeds"] for row in result["measured"] for figure in row.values() if isinstance(figure, Mapping)
    } or {0}
    least, most = min(counts), max(counts)
    if most <= 1:
        return "one seed, so no spread is known" if most else "nothing"
    often = f"{most} seeds" if least == most else f"{least} to {most} seeds"
    return f"the median of {often}"


def machine_facts(result: Result) -> list[tuple[str, str]]:
    """Machine and versions that are known."""
    here = result["environment"]
    facts = [(name, str(here[key])) for key, name in MACHINE.items() if here.get(key) is not None]
    return [*facts, ("manyhands", str(result["version"])), ("date", str(result["date"] or "unknown")[:10])]
