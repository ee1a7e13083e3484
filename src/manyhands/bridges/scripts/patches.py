"""Attributes of other modules and classes replaced by functions around them, and put back as they were."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """What was replaced, so that it can be undone (in a forked child, say)."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def wrap(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace `owner.name` by `around(owner.name)`, where there is such a thing."""
        original = getattr(owner, name, None)
        if original is None:
            return
        wrapped = around(original)
        functools.update_wrapper(wrapped, original)
        setattr(owner, name, wrapped)
        self._undo.append(lambda: setattr(owner, name, original))

    def undone_by(self, undo: Callable[[], Any]) -> None:
        self._undo.append(undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()
