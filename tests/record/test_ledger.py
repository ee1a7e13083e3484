"""The ledger: what is kept comes back, nobody's line is lost, and nothing in the file can do more than be passed over."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.errors import BadInput
from manyhands.record import ledger
from manyhands.record.forecast import Forecast
from manyhands.record.ledger import LEDGER_FILE, Entry, keep, read
from tests.conftest import ROOT
from tests.record.forecast_runs import HERE, at, entry, forecast, kept

FULL = Forecast(
    "pipeline:chunks=8,schedule=gpipe", 4, True, None, 1234.5, (1200.0, 1300.0), 10.5, {"forward": 4.0}, 123456789,
    {"memory": 12.0}, 2, 2, 64, 60.0, (50.0, 70.0), 0.5, "measured",
)  # fmt: skip


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    refused = Forecast("fsdp", 2, feasible=False, reason="needs 90 GiB per rank")
    file = kept(tmp_path / "runs", FULL, refused)
    assert file == tmp_path / "runs" / LEDGER_FILE
    assert read(tmp_path / "runs") == [entry(FULL), entry(refused)]
    kept(tmp_path / "runs", forecast(), when=0)
    assert len(file.read_text().splitlines()) == 2
    assert [one.made for one in read(tmp_path / "runs")] == ["2026-03-02T09:59:00+00:00"] * 2 + [
        "2026-03-02T10:00:00+00:00"
    ]


def test_no_ledger_and_no_forecasts(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    assert read(tmp_path / "missing") == []
    assert kept(tmp_path).read_text() == ""
    assert read(tmp_path) == []


def test_now_is_the_time_unless_given(tmp_path: Path) -> None:
    keep(tmp_path, [FULL], task="t", batch_size=1, accumulate=1, precision="fp32", device="cpu", environment=HERE)
    made = datetime.fromisoformat(read(tmp_path)[0].made)
    assert abs((datetime.now(made.tzinfo) - made).total_seconds()) < 60


def test_many_forecasts_are_several_lines(tmp_path: Path) -> None:
    file = kept(tmp_path, *(forecast(ranks=ranks) for ranks in range(1, 1102)))
    assert len(file.read_text().splitlines()) == 3
    assert [one.forecast.ranks for one in read(tmp_path)] == list(range(1, 1102))


def test_figures_that_are_not_finite_are_unknown(tmp_path: Path) -> None:
    kept(tmp_path, forecast(speed=float("nan"), interval=None, step_ms=float("inf")))
    assert [(one.forecast.samples_per_second, one.forecast.step_ms) for one in read(tmp_path)] == [(None, None)]


def test_a_machine_that_is_not_named_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"machine it is for \(missing: gpu, cores\)"):
        kept(tmp_path, forecast(), environment={"cpu": "A", "torch": "2.13.0"})
    assert not (tmp_path / LEDGER_FILE).exists()


# ---------------------------------------------------------------- writing


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.record.forecast_runs import forecast, kept\n"
        "for number in range(40): kept(Path(sys.argv[1]), *[forecast(sys.argv[2], ranks=number, reason='x' * 9999)] * 4)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], cwd=ROOT) for name in ("ddp", "hogwild")
    ]
    assert [one.wait(60) for one in both] == [0, 0]
    found = [(one.forecast.strategy, one.forecast.ranks) for one in read(tmp_path)]
    assert sorted(found) == sorted(
        (name, number) for name in ("ddp", "hogwild") for number in range(40) for _ in range(4)
    )


def test_after_half_a_line_the_next_one_is_whole(tmp_path: Path) -> None:
    file = kept(tmp_path, forecast("single"))
    file.write_bytes(file.read_bytes() + file.read_bytes()[:50])
    assert [one.forecast.strategy for one in read(tmp_path)] == ["single"]
    kept(tmp_path, forecast("ddp"))
    assert [one.forecast.strategy for one in read(tmp_path)] == ["single", "ddp"]


def test_a_full_disk_leaves_the_ledger_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = kept(tmp_path, forecast()).read_bytes(), os.write
    sizes = iter([10, None])

    def full(fd: int, data: bytes) -> int:
        size = next(sizes)
        if size is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:size])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=f"No space left on device: '.*{LEDGER_FILE}'"):
        kept(tmp_path, forecast())
    assert (tmp_path / LEDGER_FILE).read_bytes() == before


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        kept(tmp_path / "file", forecast())
    os.mkfifo(tmp_path / LEDGER_FILE)
    with pytest.raises(OSError, match=f"not a file: '.*{LEDGER_FILE}'"):
        kept(tmp_path, forecast())

    def refused(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "runs/forecasts.jsonl")

    monkeypatch.setattr(os, "open", refused)  # the tests may run as root, who may write everywhere
    with pytest.raises(OSError, match="Permission denied: 'runs/forecasts"):
        kept(tmp_path / "runs", forecast())


def test_who_holds_the_ledger_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kept(tmp_path, forecast())
    monkeypatch.setattr(ledger, "LOCK_SECONDS", 0.05)
    with file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process holds it"):
            kept(tmp_path, forecast())
    assert len(read(tmp_path)) == 1


# ---------------------------------------------------------------- reading


def line(**changes: Any) -> dict[str, Any]:
    """A line as plain data; None removes a field."""
    known = {
        "schema": 1, "made": at(-1).isoformat(), "task": "glyphs", "batch_size": 128, "accumulate": 1, "precision": "fp32",
        "device": "cpu", "environment": HERE, "forecasts": [forecast().record()],
    }  # fmt: skip
    return {name: value for name, value in {**known, **changes}.items() if value is not None}


def reading(folder: Path, *lines: Any) -> list[Entry]:
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    (folder / LEDGER_FILE).write_bytes(b"\n".join(texts) + b"\n")
    return read(folder)


@pytest.mark.parametrize(
    "foreign",
    [
        b"", b"   ", b"not JSON", b"\xff\xfe\x00", b"[" * 100_000, b"9" * 10_000, b"null", b"[]", b'"text"', b"3",
        line(schema=2), line(schema="1"), line(schema=None), line(made=None), line(made="yesterday"), line(made=3),
        line(task=["x"]), line(environment=None), line(environment="x"), line(environment={"cpu": ["x"]}),
        line(forecasts={}), line(forecasts=["x", None, {}, {"strategy": "ddp"}, {"strategy": 1, "ranks": 2}]),
        line(accumulate="1"), line(batch_size=10**30), line(device=["cpu"]),
        line(deep=json.loads("[" * 30 + "]" * 30)), line(task="x" * ledger.LARGEST_LINE),
    ],
    ids=range(27),
)  # fmt: skip
def test_a_foreign_line_is_passed_over(foreign: Any, tmp_path: Path) -> None:
    assert reading(tmp_path, line(), foreign, line(task="mnist")) == [entry(), entry(task="mnist")]


def test_a_figure_in_another_form_is_as_good_as_missing(tmp_path: Path) -> None:
    wrong = {"samples_per_second": "fast", "interval": [2.0, 1.0], "memory_bytes": [], "phases_ms": 3, "new": 1}
    (found,) = reading(tmp_path, line(forecasts=[{"strategy": "ddp", "ranks": 2, **wrong}]))
    assert found.forecast == Forecast("ddp", 2)
    (found,) = reading(tmp_path, line(forecasts=[{"strategy": "ddp", "ranks": 2, "interval": [1.0, 2.0, 3.0]}]))
    assert found.forecast.interval is None


def test_nothing_kept_commands_the_terminal(tmp_path: Path) -> None:
    (found,) = reading(tmp_path, line(task="a\x1b[2Jb", forecasts=[forecast("d\x1bdp", reason="\u202er").record()]))
    assert (found.task, found.forecast.strategy, found.forecast.reason) == ("a[2Jb", "ddp", "r")


def test_of_a_large_ledger_the_newest_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(task=str(number)) for number in range(100)]
    monkeypatch.setattr(ledger, "LARGEST_LEDGER", 20 * len(json.dumps(lines[-1])))
    found = [int(one.task) for one in reading(tmp_path, *lines)]
    assert found == list(range(81, 100))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LEDGER_FILE)
    with pytest.raises(BadInput, match="is not a file"):
        read(tmp_path)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.one_of(st.binary(max_size=200), st.text(max_size=50).map(str.encode)), cut=st.integers(0, 600))
def test_any_bytes_anywhere_cost_no_other_line(tmp_path: Path, junk: bytes, cut: int) -> None:
    half = json.dumps(line()).encode()[:cut]
    found = reading(tmp_path, line(), half + junk, line(task="mnist"))
    assert (found[0], found[-1]) == (entry(), entry(task="mnist"))
