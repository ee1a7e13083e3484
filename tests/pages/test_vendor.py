"""plotly.js as it is shipped: the file that npm has, with its licence, in the wheel, and small enough for the page."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from manyhands.pages.page import page
from manyhands.record.run import Run
from tests.conftest import ROOT

VENDOR = files("manyhands.pages").joinpath("vendor")
DIGEST = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
VERSION = "4.1.1"
LIMIT = 2_000_000  # bytes of a report


def test_the_library_is_the_one_that_docs_name() -> None:
    script = VENDOR.joinpath("plotly-cartesian.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == DIGEST
    assert f"plotly.js (cartesian - minified) v{VERSION}".encode() in script[:100]
    assert f"version\n{VERSION}," in (ROOT / "docs" / "dependencies.md").read_text()


def test_its_licence_lies_beside_it_and_is_named() -> None:
    assert VENDOR.joinpath("plotly-LICENSE").read_text().startswith("MIT License\n\nCopyright (c) 2016-2024 Plotly")
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'license-files = \[.*"src/manyhands/pages/vendor/plotly-LICENSE"\]', project)


def test_a_report_stays_below_two_megabytes(runs: list[Run]) -> None:
    assert len(page(runs).encode()) < LIMIT
