"""Progress in a notebook: one display that changes, a bar above the last lines. Plain HTML, so no widgets are needed."""

from __future__ import annotations

import sys
import time
from collections import deque
from html import escape
from typing import Any

UPDATE_SECONDS = 0.25
LINES = 10  # that stay


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this program."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class Cell:
    """What a cell shows while a fit, or all fits of a comparison, run."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._bar: tuple[str, int, int, str] | None = None  # title, steps, of how many, figures
        self._display: Any = None
        self._shown = 0.0

    def bar(self, title: str, step: int, steps: int, figures: str) -> None:
        self._bar = (title, step, steps, figures)
        if time.monotonic() - self._shown > UPDATE_SECONDS:
            self._show()

    def line(self, text: str) -> None:
        self._lines.append(text)
        self._show()

    def end(self) -> None:
        """The bar goes, the lines stay."""
        self._bar = None
        self._show()

    def _show(self) -> None:
        from IPython.display import display

        self._shown = time.monotonic()
        content = {"text/html": self._html(), "text/plain": self._text()}
        if self._display is None:
            self._display = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._display.update(content, raw=True)

    def _html(self) -> str:
        parts = []
        if self._bar is not None:
            title, step, steps, figures = self._bar
            meter = f'<progress value="{step}" max="{steps}" style="width:16em"></progress>'
            parts.append(f"<div>{escape(title)} {meter} {step} of {steps}, {escape(figures)}</div>")
        parts += [f"<div>{escape(line)}</div>" for line in self._lines]
        return f'<div style="font-variant-numeric:tabular-nums">{"".join(parts)}</div>'

    def _text(self) -> str:
        bar = "{}: step {} of {}, {}".format(*self._bar) if self._bar is not None else None
        return "\n".join([*([bar] if bar else []), *self._lines])
