"""Runs in a notebook: sentences and table as plain HTML, the charts of the report in a frame of their own.

The frame is sandboxed: it has scripts (those of the report, by their digests) and no origin, so nothing in it can reach
the notebook. Where a viewer strips frames, sentences and table remain.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..record.run import Run
from . import standalone, words
from .comparison_table import NOTHING, columns, comparison_rows
from .page import page

__all__ = ["Plot", "charts", "notebook", "page"]

HEIGHT = 620  # pixels of the frame; its corner can be dragged
BESIDE = (
    "header, nav, .skip, .absent, section:not(:has(figure)), #summary, #runs, #repeat"  # what of the report is no chart
)
CHARTS_ONLY = (
    f"<style>{BESIDE} {{ display: none }} body {{ padding: 0 1rem 1rem }} section {{ padding-top: 1rem }}</style>"
)
CELL = "padding:.3em .8em;text-align:{side};vertical-align:top"


class Plot:
    """The charts of runs: a notebook shows them, `save` writes them."""

    def __init__(self, text: str, name: str):
        self._text, self._name = text, name

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the charts as one self-contained page, and say where it is."""
        return standalone.write(self._text, Path(path))

    def _repr_html_(self) -> str:
        frame = f"width:100%;height:{HEIGHT}px;margin-top:.7em;border:1px solid #8884;resize:vertical"
        title = escape(f"Charts: {self._name}")
        return (
            f'<iframe sandbox="allow-scripts" title="{title}" style="{frame}" srcdoc="{escape(self._text)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f'<charts of {self._name}; .save("charts.html") writes them>'


def charts(runs: Sequence[Run]) -> Plot:
    """The report without what is no chart."""
    text = page(runs).replace("</head>", f"{CHARTS_ONLY}</head>", 1)
    return Plot(text, ", ".join(dict.fromkeys(run.label for run in runs)))


def notebook(runs: Sequence[Run]) -> str:
    """What a notebook shows of runs; colours are those of the notebook."""
    if not runs:
        return "<p>no runs</p>"
    sentences = words.sentences(runs)
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences[2:])
    more = f"<ul>{said}</ul>" if said else ""
    return f"<p><strong>{escape(' '.join(sentences[:2]))}</strong></p>{more}{_table(runs)}{charts(runs)._repr_html_()}"


def _table(runs: Sequence[Run]) -> str:
    rows = comparison_rows(runs)
    shown = [column for column in columns(rows) if any(column.text(row) != NOTHING for row in rows)]
    styles = [CELL.format(side="right" if column.numeric else "left") for column in shown]
    heads = "".join(
        f'<th style="{style}">{escape(column.heading)}</th>' for column, style in zip(shown, styles, strict=True)
    )
    lines = (
        "".join(
            f'<td style="{style}">{escape(column.text(row))}</td>' for column, style in zip(shown, styles, strict=True)
        )
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
