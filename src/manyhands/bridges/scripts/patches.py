"""Attributes of other modules and classes replaced by functions around them, and put back as they were."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """What was replaced, so that it can be undone (in a forked child, say)."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []
        self.undone = False  # for functions that others have taken from what was replaced

    def wrap(
        self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]], static: bool = False
    ) -> None:
        """Replace `owner.name` by `around(owner.name)`, where there is such a thing."""
        original = getattr(owner, name, None)
        if original is None:
            return
        wrapped = around(original)
        functools.update_wrapper(wrapped, original)
        setattr(owner, name, staticmethod(wrapped) if static else wrapped)
        self._undo.append(lambda: setattr(owner, name, staticmethod(original) if static else original))

    def undo(self) -> None:
        self.undone = True
        while self._undo:
            self._undo.pop()()
