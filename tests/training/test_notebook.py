"""Progress in a notebook, and a notebook that uses it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from manyhands.training.notebook import LINES, Cell, in_notebook

CELLS = (
    """
import functools, torch, manyhands as mh
x = torch.randn(600, 8)
task = mh.Task(lambda: torch.nn.Linear(8, 2), (x, (x.sum(1) > 0).long()), torch.nn.functional.cross_entropy,
               functools.partial(torch.optim.SGD, lr=0.1), batch_size=30, name="<b>sums</b>")
runs = mh.compare(task, ["single"], threads=1, epochs=2, rounds=1, round_seconds=0.05)
""",
    "runs",
    "runs[0]",
)


class Shown:
    """Stands for IPython's display of raw data: keeps the latest content of each display."""

    def __init__(self) -> None:
        self.displays: list[dict[str, str]] = []

    def __call__(self, content: dict[str, str], raw: bool, display_id: bool) -> Any:
        self.displays.append(content)
        return self

    def update(self, content: dict[str, str], raw: bool) -> None:
        self.displays[-1] = content


def test_one_display_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display")
    shown = Shown()
    monkeypatch.setattr(display, "display", shown)
    cell = Cell()
    cell.bar("<b>task</b>", 3, 10, "loss 0.5")
    assert '<progress value="3" max="10"' in shown.displays[0]["text/html"]
    assert "&lt;b&gt;task&lt;/b&gt;" in shown.displays[0]["text/html"]
    assert shown.displays[0]["text/plain"] == "<b>task</b>: step 3 of 10, loss 0.5"
    for number in range(2 * LINES):
        cell.line(f"epoch {number}")
    cell.end()
    assert len(shown.displays) == 1
    assert shown.displays[0]["text/plain"].splitlines() == [f"epoch {number}" for number in range(LINES, 2 * LINES)]
    assert "<progress" not in shown.displays[0]["text/html"]


def test_a_program_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert not in_notebook()


@pytest.mark.timeout(180)
def test_a_notebook_shows_one_display_per_cell_and_the_runs() -> None:
    """Progress once filled a cell with lines on standard error."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(book, timeout=150, kernel_name="python3").execute()
    [progress], [runs], [run] = (cell.outputs for cell in book.cells)
    assert progress.output_type == "display_data"
    assert "[1/1] single" in progress.data["text/plain"]
    assert "epoch 2" in progress.data["text/plain"]
    assert "&lt;b&gt;sums" in progress.data["text/html"]
    assert "\x1b" not in str(progress.data)
    for output in (runs, run):
        assert output.output_type == "execute_result"
        assert "<iframe" in output.data["text/html"]
    assert runs.data["text/plain"].startswith("strategy")
    assert run.data["text/plain"].startswith("<Run <b>sums</b> · single · 1 rank · ")
