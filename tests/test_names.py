"""The public names are what they say, however the package was imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import manyhands as mh


def test_functions_are_not_shadowed_by_the_modules_they_live_in() -> None:
    """`import manyhands.evaluate` once made mh.evaluate a module."""
    code = (
        "import manyhands.evaluate, manyhands.fit, manyhands.compare, manyhands.report; import manyhands as mh; "
        "assert all(callable(f) for f in (mh.fit, mh.compare, mh.evaluate, mh.report, mh.load_task)); print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import manyhands, manyhands.cli, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_exists() -> None:
    for name in mh.__all__:
        assert getattr(mh, name) is not None


def test_a_misspelt_name_is_answered_with_the_likely_one() -> None:
    with pytest.raises(AttributeError, match='manyhands has no "compar"; did you mean "compare"'):
        mh.compar  # noqa: B018
