"""Something to do as soon as a module has been imported, by whoever imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class OnImport(MetaPathFinder):
    """Stands first among the finders until the module is asked for; its own loader then loads it as ever."""

    def __init__(self, name: str, then: Callable[[], None]):
        self._name, self._then = name, then
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            original = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                original(module)
                self._then()

            loader.exec_module = exec_module
        return spec
