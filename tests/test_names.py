"""The public names are what they say, however the package was imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import manyhands as mh


def test_no_module_has_the_name_of_a_public_function() -> None:
    """`import manyhands.evaluate` once made mh.evaluate a module."""
    modules = {path.stem for path in Path(mh.__file__).parent.iterdir()}
    assert not modules & {name for name in mh.__all__ if not isinstance(getattr(mh, name), str | ModuleType)}


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import manyhands, manyhands.cli.app, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_exists() -> None:
    for name in mh.__all__:
        assert getattr(mh, name) is not None


def test_a_misspelt_name_is_answered_with_the_likely_one() -> None:
    with pytest.raises(AttributeError, match='manyhands has no "compar"; did you mean "compare"'):
        mh.compar  # noqa: B018
