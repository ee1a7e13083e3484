"""The tutorial as a notebook, made from docs/tutorial.md: text and code in turn. `python -m tests.tutorial` writes it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")


def notebook() -> nbformat.NotebookNode:
    """One cell per block of code and per stretch of text between them."""
    cells = []
    for number, part in enumerate(re.split(r"^```python\n(.*?)^```\n", PAGE.read_text(), flags=re.M | re.S)):
        made = nbformat.v4.new_code_cell if number % 2 else nbformat.v4.new_markdown_cell
        if part.strip():
            cells.append(made(part.strip(), id=f"cell-{number}"))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def text() -> str:
    return nbformat.writes(notebook()) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(text())
