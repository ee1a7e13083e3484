"""Files that anybody may have written: each is answered with one line and bounded work, and none commands the terminal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.cli import tables, terminal
from manyhands.cli import watch as watching
from manyhands.errors import BadInput
from manyhands.pages.page import page
from manyhands.record.exports import find_runs
from manyhands.record.live import LIVE_FILE
from manyhands.record.run import RECORD_FILE, Run
from manyhands.record.untrusted import plain, read_json
from manyhands.training.checkpoints.checkpoint import MANIFEST, STATE, manifest
from manyhands.training.checkpoints.read import latest
from manyhands.training.checkpoints.write import write
from tests.cli.test_watch import STATE as LIVE
from tests.conftest import Command
from tests.training.checkpoints.test_checkpoint import made

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e\ud800"
RECORD: dict[str, Any] = {
    "schema": 1, "task": "glyphs", "strategy": "ddp", "options": {"bucket_mb": 2}, "status": "failed", "reason": "r",
    "ranks": 2, "device": "cpu", "devices": ["cpu", "cpu"], "threads": 1, "batch_size": 32, "seconds": 1.0, "steps": 20,
    "samples": 640, "samples_per_second": 640.0, "step_ms": {"median": 1.0, "p10": 1.0, "p90": 2.0}, "losses": [2.0, None],
    "epochs": [{"epoch": 1, "loss": 2.0, "seconds": 1.0, "samples": 640, "test_accuracy": 0.5}], "notes": ["n"],
    "phases_ms": {"forward": 3.0, "backward": 5.0}, "test": {"samples": 9, "loss": 1.0, "accuracy": 0.5, "per_class": {"0": 0.5}},
    "per_rank": [{"rank": 0, "device": "cpu", "phases_ms": {"forward": 3.0}, "peak_memory_bytes": 1, "samples": 3}],
    "slow_rank": {"rank": 1, "phase": "forward", "behind_ms": 2.0}, "staleness": {"mean": 1.0, "max": 3, "histogram": [1, 2]},
    "usage": {"cores": [{"core": 0, "mean_percent": 50.0}], "gpus": [], "samples": 3}, "communication_bytes": 10.0,
    "rounds": [600.0, 700.0], "started": "2026-01-01", "exact": False, "exact_reason": "e", "command": "c",
    "environment": {"cpu": "A", "cores": 2}, "faults": [{"kind": "died"}], "resumed_from": {"step": 4},
    "forecast": {"samples_per_second": 600.0, "interval": [500.0, 700.0], "memory_bytes": 1, "made": "2026", "basis": "b"},
}  # fmt: skip
WRONG: list[Any] = [
    None, "text", ESCAPES, True, -1, 0, 10**4000, -(10**30), 1e308, float("nan"), float("inf"), [], ["x", None], {},
    {"rank": []}, [[1]], [{"epoch": "x"}], {"forward": "x"}, {"a": -1e18, "b": 1e18},
]  # fmt: skip


def replaced(document: Any, wrong: Any) -> Iterator[Any]:
    """The document with every value in it, one after another, replaced."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        for inner in (wrong, *replaced(value, wrong)):
            copy = dict(document) if isinstance(document, dict) else list(document)
            copy[key] = inner
            yield copy


SMALL_LIVE = {**LIVE, "curve": [[1, 2.0], [2, None], [3, 1.0]]}


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


NO_DOCUMENTS = [
    "",
    "{",
    "null",
    "[]",
    '"text"',
    "7",
    deep(30),
    deep(100_000),
    "9" * 10_000,
    "\x00\xff",
    '{"schema": 1}',
]


def shown(read: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It either works or is refused in one line, and prints nothing that a terminal obeys."""
    refusal = ""
    try:
        read()
    except BadInput as problem:
        refusal = str(problem)
    assert len(refusal.splitlines()) <= 1
    assert len(refusal) < 1000
    out = capsys.readouterr().out
    assert plain(out) == out
    assert len(out) < 1_000_000


def watched(folder: Path) -> None:
    state = watching.read_state(folder)
    assert state is not None
    terminal.console().print(watching.picture(state))


def test_a_live_file_with_anything_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text where a number belongs ended in a traceback, a huge number hung until killed."""
    for document in (document for wrong in WRONG for document in replaced(SMALL_LIVE, wrong)):
        (tmp_path / LIVE_FILE).write_text(_text(document))
        shown(lambda: watched(tmp_path), capsys)


@pytest.mark.parametrize("kinds", [2, pytest.param(len(WRONG), marks=pytest.mark.soak)])
def test_a_record_with_anything_in_it(kinds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every value of a record replaced: shown, listed, and put on a page."""
    chosen = WRONG[:: len(WRONG) // kinds]
    for number, document in enumerate(document for wrong in chosen for document in replaced(RECORD, wrong)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / RECORD_FILE).write_text(_text(document))
        shown(lambda folder=folder: terminal.show_run(Run.load(folder)), capsys)
    found = find_runs(tmp_path)
    shown(lambda: tables.show_runs(found, tmp_path), capsys)
    for start in range(0, len(found), 40):
        shown(lambda start=start: page(found[start : start + 40]), capsys)


def test_a_timeline_with_anything_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    span = {"rank": 0, "step": 4, "phase": "load", "start_ms": 0.5, "end_ms": 1.5}
    (tmp_path / RECORD_FILE).write_text(_text(RECORD))
    for document in (document for wrong in WRONG for document in replaced([span, span], wrong)):
        (tmp_path / "timeline.json").write_text(_text(document))
        run = Run.load(tmp_path)
        assert run.timeline == [] or all(isinstance(entry, dict) for entry in run.timeline)


@pytest.mark.parametrize("text", NO_DOCUMENTS, ids=lambda text: text[:12])
def test_what_is_no_document_at_all(text: str, tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (RECORD_FILE, LIVE_FILE):
        (folder / name).write_text(text, encoding="latin-1")
    for words in (["watch", str(folder)], ["evaluate", str(folder)], ["report", str(folder)]):
        code, out, err = command(*words)
        assert (code, out.strip()) == (2, "")
        assert len(err.splitlines()) == 1
    assert command("runs", str(tmp_path))[0] == 0


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_records_and_live_files_made_at_random(
    data: st.DataObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
    for name, whole in ((RECORD_FILE, RECORD), (LIVE_FILE, LIVE)):
        changed = {key: data.draw(anything) for key in data.draw(st.lists(st.sampled_from(sorted(whole)), max_size=6))}
        (tmp_path / name).write_text(_text({**whole, **changed}))
    shown(lambda: terminal.show_run(Run.load(tmp_path)), capsys)
    shown(lambda: watched(tmp_path), capsys)


def test_escape_sequences_do_not_reach_the_terminal(tmp_path: Path, command: Command) -> None:
    """Task, reason and device of a record went raw through watch and evaluate; names of folders through runs."""
    folder = tmp_path / "a\x1b[31m"
    folder.mkdir()
    hostile = {key: ESCAPES + value if isinstance(value, str) else value for key, value in RECORD.items()}
    (folder / RECORD_FILE).write_text(_text({**hostile, "notes": [ESCAPES], "source": f"nothing{ESCAPES}"}))
    for words in (["watch", str(folder)], ["evaluate", str(folder)], ["runs", str(tmp_path)], ["report", str(folder)]):
        _, out, err = command(*words)
        assert plain(out + err) == out + err


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LIVE_FILE)
    os.mkfifo(tmp_path / RECORD_FILE)
    with pytest.raises(BadInput, match=r"live\.json is not a file"):
        watching.read_state(tmp_path)
    with pytest.raises(BadInput, match=r"run\.json not found"):
        Run.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "most", "message"),
    [
        ("[1, 2, 3]", 8, r"cannot be read: 9 bytes are more than such a file may have \(8\)"),
        (deep(100_000), 1 << 20, "cannot be read: it is nested too deeply"),
        ("{", 100, r"cannot be read: Expecting property name"),
    ],
)
def test_why_a_file_cannot_be_read(text: str, most: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(BadInput, match=message):
        read_json(tmp_path / "file.json", most)


def test_what_is_a_document_but_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / RECORD_FILE).write_text("[]")
    with pytest.raises(BadInput, match=r"run\.json is not a manyhands run record \(a list, not an object\)"):
        Run.load(tmp_path)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: os.stat(tmp_path / "nothing"))
    with pytest.raises(BadInput, match=r"run\.json cannot be read \(No such file or directory\)"):  # gone meanwhile
        Run.load(tmp_path)


def test_what_is_a_document_but_no_live_file(tmp_path: Path, command: Command) -> None:
    (tmp_path / LIVE_FILE).write_text(_text({**LIVE, "step": "many"}))
    code, _, err = command("watch", str(tmp_path))
    assert code == 2
    assert "live.json does not hold what a run writes there (wrong: step)" in err


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD_FILE).write_text(_text(RECORD))
    (tmp_path / "weights.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(BadInput, match=r"weights\.safetensors holds no weights that can be read"):
        Run.load(tmp_path)


def test_a_record_without_ranks_makes_a_page_beside_others(tmp_path: Path) -> None:
    """Two records of one strategy, one of them with 0 ranks: how it scales was divided by that."""
    runs = []
    for ranks in (0, -1, 2, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        (folder / RECORD_FILE).write_text(json.dumps({**RECORD, "status": "done", "ranks": ranks}))
        runs.append(Run.load(folder))
    assert [run.ranks for run in runs] == [1, 1, 2, 4]
    assert "<html" in page(runs)


def test_a_checkpoint_that_somebody_else_made_is_passed_over(tmp_path: Path) -> None:
    """Its sums are right and its content is not: it must end in a line, not in a traceback."""
    good = write(tmp_path, made(step=1))
    path = write(tmp_path, made(step=2))
    state = json.loads((path / STATE).read_text())
    for document in (document for wrong in WRONG[::3] for document in replaced(state, wrong)):
        _forge(path, _text(document))
        with contextlib.suppress(BadInput):  # of another manyhands, it says of itself
            found, _ = latest(tmp_path)
            assert found is not None
            assert found.path in (good, path)
    _forge(path, deep(100_000))
    found, passed_over = latest(tmp_path)
    assert found is not None
    assert passed_over == ["checkpoint step-00000002 is not used: its content is not what manyhands writes"]


def _forge(path: Path, state: str) -> None:
    """Put a state into a checkpoint and make its sums right."""
    files = json.loads((path / MANIFEST).read_text())["files"]
    data = state.encode()
    (path / STATE).write_bytes(data)
    files[STATE] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / MANIFEST).write_bytes(manifest(files))


def _text(document: Any) -> str:
    sys.set_int_max_str_digits(5000)
    return json.dumps(document)
