"""How runs are shown to people in a notebook: a record knows that somebody draws it, and not who.

Imports point one way: pages read records, records do not know pages. So whoever puts the package together
(manyhands/__init__.py) says where the pages are, and a record asks for them only when somebody looks at it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import Run

_pages: Callable[[], Any] | None = None


def show_with(pages: Callable[[], Any]) -> None:
    """`pages()` gives what has `notebook(runs)`, `charts(runs)` and `page(runs)`; it is not called before it is needed."""
    global _pages
    _pages = pages


def pages() -> Any:
    assert _pages is not None, "manyhands/__init__.py says where the pages are"
    return _pages()


class Presented:
    """What a run and a list of runs have in common: a notebook shows them as the report does."""

    @abstractmethod
    def _presented(self) -> Sequence[Run]:
        """The runs that are shown."""

    def _repr_html_(self) -> str:
        """What a notebook shows: the sentences, the table and the charts of the report."""
        return str(pages().notebook(self._presented()))

    def plot(self) -> Any:
        """The charts of the report: a notebook shows them, `.save("charts.html")` writes them as a page of their own."""
        return pages().charts(self._presented())
