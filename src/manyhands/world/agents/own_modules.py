"""Modules of the user's own: files beside a script, or a package that is developed. Other hosts may not have them, or have
older ones; those travel by value."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import cloudpickle

OURS = __name__.partition(".")[0]


def own_modules() -> dict[str, str]:
    """Modules that were imported from outside the places where packages are installed: their names and digests."""
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        foreign = name.partition(".")[0] in (OURS, "__main__", "__mp_main__")
        if isinstance(file, str) and file.endswith(".py") and not foreign and not _installed(file, installed):
            found[name] = digest_of(name) or "gone"  # whoever has another one has not this
    return found


def _installed(file: str, places: tuple[str, ...]) -> bool:
    return file.startswith(places) or "site-packages" in file or "dist-packages" in file


def digest_of(name: str) -> str | None:
    """Of a module's source file as it would be imported now; None where there is none."""
    with suppress(ImportError, ValueError, AttributeError, OSError):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            return sha256(Path(found.origin).read_bytes()).hexdigest()
    return None


@contextmanager
def by_value(names: Iterable[str]) -> Iterator[None]:
    """What is packed meanwhile takes these modules along."""
    taken = [sys.modules[name] for name in names if name not in cloudpickle.list_registry_pickle_by_value()]
    for module in taken:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in taken:
            cloudpickle.unregister_pickle_by_value(module)
