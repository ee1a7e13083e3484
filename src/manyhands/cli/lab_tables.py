"""What `manyhands lab` prints: which experiments there are, and published figures under measured ones."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from .terminal import PlainConsole, console, table

if TYPE_CHECKING:
    from ..studies.lab.catalogue import Entry

ENDLESS = 10_000  # columns: no table is wider
LABEL = 20  # columns that labels of rows get at least


def show_experiments(known: Sequence[Entry]) -> None:
    """Name, title, the published claim, and about how long it takes."""
    out = console()
    for one in known:
        out.print(f"{one.name}: {one.title}")
        _paragraph(out, f"Published: {one.claim}", 2)
        if all(one.takes):
            _paragraph(out, f"Takes about {one.takes[0]} with --quick; in full: {one.takes[1]}.", 2)
    out.print()
    out.print("manyhands lab NAME          run one again, as it was published")
    out.print("manyhands lab NAME --quick  with reduced data: at most 4 minutes on 2 cores")
    out.print("manyhands lab FILE.py       run one of your own (docs/lab.md)")


def show_experiment(result: Mapping[str, Any], page: Path) -> None:
    """Measured figures, published ones under them, the verdict, and where the page is."""
    from ..pages.lab_page import MARKS, UNKNOWN, seeds_text

    out = console()
    filled = _figures(result, broken=False)
    if Measurement.get(out, out.options.update(max_width=ENDLESS), filled).maximum > out.width:
        filled = _figures(result, broken=True)
    filled.columns[0].max_width = None  # what is left
    text = io.StringIO()
    PlainConsole(file=text, width=out.width, highlight=False, markup=False).print(filled)
    for line in text.getvalue().splitlines():
        out.print(line.rstrip(), soft_wrap=True)
    out.print()
    for row in result["measured"]:
        if row["problem"]:
            _paragraph(out, f"{row['row']}: {row['problem']}")
    _paragraph(out, f"Measured: {seeds_text(result)}. Published with: {result['source']}.")
    if result["quick"]:
        _paragraph(out, f"Quick run, reduced: {result['note'] or 'less data than was published'}.")
    out.print()
    words = MARKS.get(result["holds"], UNKNOWN)[1]
    for told in (f"Published: {result['claim']}", f"Measured: {result['finding']}", f"{words}: {result['why']}"):
        _paragraph(out, told)
    out.print(f"report: {page}", soft_wrap=True)


def _figures(result: Mapping[str, Any], broken: bool) -> Table:
    """A line of measured figures per row, and one of published figures where there are any; `broken` to save width."""
    from ..pages.lab_page import table_rows

    headings = [column["heading"].replace(" ", "\n") if broken else column["heading"] for column in result["columns"]]
    filled = table(["", *headings], headings, wrap=[""], gap=1 if broken else 2)
    filled.columns[0].max_width, filled.columns[0].overflow = LABEL, "fold"
    for row in table_rows(result):
        cells = [row["cells"][column["key"]] for column in result["columns"]]
        filled.add_row(row["label"], *(measured or "-" for _, measured, _ in cells))
        if any(published for published, _, _ in cells):
            filled.add_row("  published", *(published for published, _, _ in cells))
    return filled


def _paragraph(out: Console, text: str, indent: int = 0) -> None:
    """Wrapped by hand: rich leaves a space where it breaks a line."""
    space = " " * indent
    for line in textwrap.wrap(text, out.width, initial_indent=space, subsequent_indent=space):
        out.print(line, soft_wrap=True)
