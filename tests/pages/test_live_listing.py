"""All runs of a folder as lines: each record is read once, links are refused, running, crashed and stored told apart."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import BadInput
from manyhands.pages.learning_charts import _loss_by_steps
from manyhands.pages.live import listing as listing_module
from manyhands.pages.live import run_folders, summaries
from manyhands.pages.live.listing import Listing
from manyhands.pages.live.running import as_run
from manyhands.pages.live.view import page_of
from manyhands.record.live import CURVE, Live
from manyhands.record.live_state import read_state
from manyhands.record.run import Run
from manyhands.record.run_folder import LOCK, held
from manyhands.record.step_losses import MOST
from tests.pages.live_runs import change, silent_since, tell, train

SMALLEST = 1000  # runs that must list at once


@pytest.fixture(autouse=True)
def _look_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And read to the end, however long it takes."""
    monkeypatch.setattr(listing_module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(listing_module, "READ_SECONDS", 60.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The records that were opened, in order."""
    opened: list[Path] = []
    read = summaries.read_json

    def counted(file: Path, *more: Any, **keywords: Any) -> Any:
        opened.append(file)
        return read(file, *more, **keywords)

    monkeypatch.setattr(summaries, "read_json", counted)
    return opened


def store(folder: Path, **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(**{"task": "glyphs", "strategy": "ddp", "ranks": 2, "losses": [0.5] * 100, **fields})
    (folder / "run.json").write_text(run.to_json())
    return folder


def rows(listing: Listing) -> dict[str, dict[str, Any]]:
    """Every run by its folder, once all are read."""
    while (found := listing.changes())["reading"]:
        pass
    return {row["folder"]: row for row in found["runs"]}


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_thousand_runs_are_read_once(tmp_path: Path, reads: list[Path]) -> None:
    text = Run(
        "glyphs", "ddp", ranks=2, samples_per_second=1000.0, test={"accuracy": 0.9}, losses=[0.5] * 100
    ).to_json()
    for number in range(SMALLEST):
        folder = tmp_path / f"run-{number:04d}"
        folder.mkdir()
        started = f'"started": "2026-01-01T{number // 60:02d}:{number % 60:02d}:00"'
        (folder / "run.json").write_text(text.replace('"started": null', started))
    listing = Listing(tmp_path)
    began = time.monotonic()
    found = rows(listing)
    assert time.monotonic() - began < 60  # a second on a machine that does nothing else
    assert list(found)[:2] == ["run-0999", "run-0998"]
    assert len(found) == len(reads) == SMALLEST
    version = listing.changes()["version"]
    assert listing.changes(version)["runs"] == []
    assert len(json.dumps(listing.changes())) < 300 * SMALLEST
    assert len(reads) == SMALLEST
    store(tmp_path / "run-0500", task="mnist")
    [changed] = listing.changes(version)["runs"]
    assert (changed["folder"], changed["task"]) == ("run-0500", "mnist")
    assert len(reads) == SMALLEST + 1


def test_the_newest_runs_come_first_where_reading_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[Path]
) -> None:
    for number in range(3):
        os.utime(store(tmp_path / str(number)) / "run.json", (number, number))
    monkeypatch.setattr(listing_module, "READ_SECONDS", -1.0)
    listing = Listing(tmp_path)
    assert (listing.changes()["runs"], listing.changes()["reading"]) == ([], 3)
    monkeypatch.setattr(listing_module, "READ_SECONDS", 60.0)
    assert listing.changes()["reading"] == 0
    assert [file.parent.name for file in reads] == ["2", "1", "0"]


def test_only_what_has_changed_is_told(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        store(tmp_path / name)
    listing = Listing(tmp_path)
    first = listing.changes()
    assert first["everything"]
    assert {row["folder"] for row in first["runs"]} == {"a", "b/c"}
    store(tmp_path / "d", status="failed", reason="rank 1 of 2 failed")
    [new] = (second := listing.changes(first["version"]))["runs"]
    assert (new["folder"], new["status"], new["reason"]) == ("d", "failed", "rank 1 of 2 failed")
    assert not second["everything"]
    (tmp_path / "a" / "run.json").unlink()
    third = listing.changes(second["version"])
    assert (third["runs"], third["gone"]) == ([], [row["id"] for row in first["runs"] if row["folder"] == "a"])
    assert listing.changes(third["version"] + 5)["everything"]  # of a server before this one


def test_a_run_from_its_start_to_its_record(tmp_path: Path) -> None:
    """Between the last step and the record there is neither a live file nor a record: the run used to be gone then."""
    folder, listing = tmp_path / "r", Listing(tmp_path)
    with held(folder):
        assert rows(listing)["r"]["status"] == "starting"
        writer = train(folder, range(1, 40))
        row = rows(listing)["r"]
        assert (row["status"], row["step"], row["steps"], row["task"]) == ("running", 39, 400, "glyphs")
        tell(writer, 40)
        assert rows(listing)["r"]["step"] == 40
        [view] = listing.views([row["id"]])
        assert (view.run.status, view.run.steps, len(view.run.losses)) == ("running", 40, 40)
        assert view.run.losses[39] == pytest.approx(3.0 / 40)
        assert view.run.seconds == pytest.approx(40 * 9 / 1000)
        writer.close()
        assert rows(listing)["r"]["status"] == "saving"
        assert listing.views([row["id"]])[0].run.losses == view.run.losses
        writer.run.save(folder)
    assert rows(listing)["r"] == {**rows(listing)["r"], "status": "done", "id": row["id"]}
    [view] = listing.views([row["id"]])
    assert (view.run.status, view.state) == ("done", None)


def test_a_run_whose_process_is_gone_has_crashed(tmp_path: Path) -> None:
    folder, listing = tmp_path / "r", Listing(tmp_path)
    train(folder, range(1, 5))
    change(folder, pid=ended_process())
    assert rows(listing)["r"]["status"] == "running"  # written a moment ago: somebody does that
    silent_since(folder, 15)
    row = rows(listing)["r"]
    assert (row["status"], row["silent"]) == ("crashed", 10)
    [view] = listing.views([row["id"]])
    assert "ended before it could write a record" in (view.run.reason or "")
    change(folder, host="another.machine")
    assert rows(listing)["r"]["status"] == "running"  # nobody here can know


def test_what_the_page_of_an_open_run_says(tmp_path: Path) -> None:
    """No verdict on what has not ended, and no list of charts that may yet come."""
    train(tmp_path / "going", range(1, 5))
    train(tmp_path / "crashed", range(1, 5))
    change(tmp_path / "crashed", pid=ended_process())
    silent_since(tmp_path / "crashed", 15)
    store(tmp_path / "stored", strategy="hogwild", samples_per_second=5.0, started="2026-01-01")
    found = rows(listing := Listing(tmp_path))
    pages = {name: page_of(listing.views([row["id"]])) for name, row in found.items()}
    assert "The figures are those so far; they change during training." in pages["going"]
    assert "step 4 of 400 · epoch 1 of 4 · two ranks on cpu · 4,321 samples/s · loss 0.7500" in pages["going"]
    assert 'data-every="2000"' in pages["going"]
    assert "Staleness" not in pages["going"]
    assert "ddp: crashed: its process ended before it could write a record" in pages["crashed"]
    assert "The figures are the last that were reported." in pages["crashed"]
    assert re.search(r"Nothing heard for 1\d s\.", pages["crashed"])
    assert 'data-every="0"' in pages["stored"]
    assert 'class="now' not in pages["stored"]
    both = page_of(listing.views([found["going"]["id"], found["stored"]["id"]]))
    assert "ddp is still running and not judged yet." in both
    with held(tmp_path / "soon"):
        assert "soon" in page_of(listing.views([rows(listing)["soon"]["id"]]))


def test_a_number_that_another_process_has_now_is_not_the_run(tmp_path: Path) -> None:
    train(tmp_path / "r", range(1, 5))
    change(tmp_path / "r", pid=os.getpid(), time=100.0)  # before this process began
    assert rows(Listing(tmp_path))["r"]["status"] == "crashed"


def test_a_live_file_older_than_the_record_is_not_the_news(tmp_path: Path) -> None:
    train(tmp_path / "r", range(1, 5))
    os.utime(tmp_path / "r" / "live.json", (1, 1))
    store(tmp_path / "r")
    assert rows(Listing(tmp_path))["r"]["status"] == "done"


@pytest.mark.parametrize("text", ["", "17 and more", "999999999999"])
def test_a_lock_that_nobody_holds_is_no_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / LOCK).write_text(text)
    assert rows(Listing(tmp_path)) == {}


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    outside, served = store(tmp_path / "outside"), tmp_path / "served"
    inside = store(served / "inside")
    (served / "link").symlink_to(outside)
    (served / "half").mkdir()
    (served / "half" / "run.json").symlink_to(outside / "run.json")
    listing = Listing(served)
    assert list(rows(listing)) == ["inside"]
    id = rows(listing)["inside"]["id"]
    (inside / "timeline.json").symlink_to(outside / "run.json")
    with pytest.raises(BadInput, match="is a link"):
        listing.views([id])
    (inside / "timeline.json").unlink()
    (inside / "run.json").rename(served / "kept.json")
    (inside / "run.json").symlink_to(outside / "run.json")  # since the folder was looked through
    with pytest.raises(BadInput, match="no run"):
        listing.views([id])


def test_what_cannot_be_read_is_counted_and_does_no_harm(tmp_path: Path) -> None:
    store(tmp_path / "good")
    for name, text in (("one", "[" * 100_000), ("two", '{"task": "x"}'), ("three", "\x00")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    train(tmp_path / "four", range(1, 5))
    change(tmp_path / "four", step="many")
    os.mkfifo(tmp_path / "run.json")
    found = (listing := Listing(tmp_path)).changes()
    assert ([row["folder"] for row in found["runs"]], found["unreadable"]) == (["good"], 4)
    with pytest.raises(BadInput, match=r"no run '\.\./good' in this folder"):
        listing.views(["../good"])


def test_losses_are_passed_over_and_nothing_else(tmp_path: Path) -> None:
    """Their text is skipped, not parsed: a text that looks like them must not be taken for them."""
    store(tmp_path / "text", task='"losses": [', reason='x", "losses": [1], "status": "done', status="failed")
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "run.json").write_text('{"schema": 1, "losses": [[1], 2], "task": "a", "strategy": "b"}')
    found = (listing := Listing(tmp_path)).changes()
    assert ([row["folder"] for row in found["runs"]], found["unreadable"]) == (["text"], 1)
    assert (found["runs"][0]["task"], found["runs"][0]["status"]) == ('"losses": [', "failed")
    assert listing.views([found["runs"][0]["id"]])[0].run.losses == [0.5] * 100


def test_large_records_are_not_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        store(tmp_path / name)
    listing = Listing(tmp_path)
    ids = [row["id"] for row in rows(listing).values()]
    one = listing.views(ids[:1])[0].run
    assert listing.views(ids[:1])[0].run is one
    monkeypatch.setattr(listing_module, "KEPT_BYTES", 2 * (tmp_path / "a" / "run.json").stat().st_size)
    assert [view.run.losses for view in listing.views(ids)] == [[0.5] * 100] * 3
    assert len(listing._runs) == 2
    monkeypatch.setattr(listing_module, "KEPT_BYTES", 0)
    assert len(listing.views(ids)) == 3
    assert len(listing._runs) == 0


def test_a_whole_disk_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        store(tmp_path / str(number))
    monkeypatch.setattr(run_folders, "MOST_FOLDERS", 4)
    found = Listing(tmp_path).changes()
    assert (len(found["runs"]), found["more"]) == (3, True)


def test_the_served_folder_may_be_a_run_itself(tmp_path: Path) -> None:
    store(tmp_path)
    assert list(rows(Listing(tmp_path))) == [tmp_path.name]


def test_the_curve_of_a_long_run_spans_all_of_it(tmp_path: Path) -> None:
    """The first points used to go when there were more than 400: after minutes only the end was left."""
    writer = Live(Run("glyphs", "ddp"), None)
    for step in range(1, 5 * CURVE):
        writer.hear("progress", {"step": step, "loss": 1.0 / step})
    steps = [step for step, _ in writer._curve]
    assert steps[0] == 1
    assert CURVE // 2 <= len(steps) <= CURVE
    assert steps[-1] > 4.9 * CURVE


def test_a_live_file_does_not_grow_with_the_epochs(tmp_path: Path) -> None:
    """All epochs were written twice a second; from 200,000 on, the file was too large to be read."""
    run = Run("glyphs", "ddp", epochs=[{"epoch": number, "test_accuracy": 0.5} for number in range(1, 10_001)])
    train(tmp_path, range(1, 2), run)
    tested = json.loads((tmp_path / "live.json").read_text())["tested"]
    assert len(tested) <= CURVE
    assert tested[-1] == [10_000, 0.5]


def test_the_curve_of_a_running_run_reaches_its_last_step(tmp_path: Path) -> None:
    """Beyond 200,000 steps the page of a running run showed no new loss."""
    train(tmp_path, range(1, 1_000_001, 50_000), total=2_000_000)
    state = read_state(tmp_path)
    assert state is not None
    run = as_run(state, "running")
    assert len(run.losses) <= MOST
    points = _loss_by_steps(run)
    assert points[0][1] == 3.0
    assert points[-1][0] == pytest.approx(950_001, abs=run.steps_per_loss)
    assert points[-1][1] == pytest.approx(3.0 / 950_001)
