"""What makes a page one file that works from disk, offline: its template, its style, and scripts known by their digests.

A content security policy in the page lets only the scripts written there run (by their digests) and nothing be
fetched, so that no string of a record can become code; every such string is escaped all the same.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..record.whole_file import whole
from .chart import Chart, chart_data

PLOTLY = "plotly-cartesian.min.js"  # bar, scatter and heatmap are in it, maps and 3D are not; docs/dependencies.md


def render(template: str, charts: Iterable[Chart], /, **values: Any) -> str:
    """The whole page as text: text first, then the charts' data, plotly.js, charts.js and page.js."""
    scripts = plotly(), script("charts.js"), script("page.js")
    return str(
        templates()
        .get_template(template)
        .render(
            frame="frame.html.jinja",
            css=script("page.css"),
            scripts=[(_digest(text), text) for text in scripts],
            chart_data=chart_data(charts),
            **values,
        )
    )


def write(text: str, file: Path) -> Path:
    """Write a page, and say where it is."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole(file) as scratch:
            scratch.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise BadInput(f"the report cannot be written to {file}: {problem.strerror}; choose another path") from None
    return file.resolve()


@cache
def templates() -> Any:
    """The templates of all pages; every value they are given is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["breakable"] = _breakable
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def _breakable(text: str) -> Any:
    """Text whose names may go on in the next line after their separators, and elsewhere only where that is not enough."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([:,=])(?=\S)", r"\1<wbr>", str(escape(text))))


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def script(name: str) -> str:
    """A script or the style sheet of pages, as text."""
    return _resource("templates", name)


def plotly() -> str:
    """The chart library, as text."""
    return _resource("vendor", PLOTLY)


@cache
def _resource(folder: str, name: str) -> str:
    return files(__package__).joinpath(folder, name).read_text(encoding="utf-8")
