"""The public names are what they say, however the package was imported."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import manyhands as mh
from manyhands.world.launch import Place, launch


def test_functions_are_not_shadowed_by_the_modules_they_live_in() -> None:
    """`import manyhands.evaluate` once made mh.evaluate a module."""

    def shadowed(place: Place) -> list[str]:
        """In a process of its own that forgets the package (and keeps torch, which is slow to import)."""
        for name in [name for name in sys.modules if name.split(".")[0] == "manyhands"]:
            del sys.modules[name]
        for name in ("evaluate", "fit", "compare", "report"):
            importlib.import_module(f"manyhands.{name}")
        anew = importlib.import_module("manyhands")
        return [
            name for name in ("fit", "compare", "evaluate", "report", "load_task") if not callable(getattr(anew, name))
        ]

    assert launch(shadowed, 1) == [[]]


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import manyhands, manyhands.cli, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_exists() -> None:
    for name in mh.__all__:
        assert getattr(mh, name) is not None


def test_a_misspelt_name_is_answered_with_the_likely_one() -> None:
    with pytest.raises(AttributeError, match='manyhands has no "compar"; did you mean "compare"'):
        mh.compar  # noqa: B018
