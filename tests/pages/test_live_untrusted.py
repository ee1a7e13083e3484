"""Records and live files with anything in them: the list and the pages go on, and what a browser gets is JSON and text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.pages.live import listing as listing_module
from manyhands.pages.live.listing import Listing
from manyhands.pages.live.view import page_of
from tests.pages.live_runs import train
from tests.record.test_untrusted import RECORD, WRONG, _text, replaced

KINDS = pytest.mark.parametrize(
    "kinds", [WRONG[2::4], pytest.param(WRONG, marks=pytest.mark.soak)], ids=["some", "all"]
)


@pytest.fixture(autouse=True)
def _look_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_module, "LOOK_SECONDS", 0.0)


@KINDS
def test_a_live_file_with_anything_in_it(kinds: list[Any], tmp_path: Path) -> None:
    """A number of 4,000 digits for the time a run began ended in an error of the server, for all viewers."""
    train(tmp_path / "r", range(1, 4))
    file = tmp_path / "r" / "live.json"
    state, listing, shown = json.loads(file.read_text()), Listing(tmp_path), 0
    for document in (document for wrong in kinds for document in replaced(state, wrong)):
        file.write_text(_text(document))
        found = listing.changes()
        json.dumps(found, allow_nan=False)
        for row in found["runs"]:
            assert "</html>" in page_of(listing.views([row["id"]]))
            shown += 1
    assert shown > 20


@KINDS
def test_a_record_with_anything_in_it(kinds: list[Any], tmp_path: Path) -> None:
    for number, document in enumerate(document for wrong in kinds for document in replaced(RECORD, wrong)):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "run.json").write_text(_text(document))
    listing = Listing(tmp_path)
    while (found := listing.changes())["reading"]:
        pass
    json.dumps(found, allow_nan=False)
    assert len(found["runs"]) + found["unreadable"] == number + 1
    assert len(found["runs"]) > found["unreadable"]
