"""The ledger: forecasts kept beside the runs that will score them, one line of JSON for each time forecasts were made.

    runs/forecasts.jsonl      {"schema", "made", "task", ..., "environment", "forecasts": [...]}
    runs/<run>/run.json       scored against the latest forecast made before it started (matching.py)

Lines are only ever added. A line that is damaged, foreign or of a newer version is passed over, so that nothing which
happens to one of them costs the others.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from ..errors import BadInput
from .forecast import Forecast
from .run import finite
from .untrusted import cleaned, fits

LEDGER_FILE = "forecasts.jsonl"
SCHEMA = 1
LARGEST_LEDGER = 16 << 20  # bytes; of a larger one the newest lines are read: about twenty thousand forecasts
LARGEST_LINE = 4 << 20
MOST_IN_A_LINE = 500  # forecasts; more of them go into further lines, each well below the largest
LOCK_SECONDS = 10.0
MACHINE = ("cpu", "gpu", "cores", "torch")  # what of an environment identifies the machine
FIELDS: dict[str, Any] = {
    "made": str,
    "task": str,
    "batch_size": int | None,
    "accumulate": int,
    "precision": str,
    "device": str,
    "environment": dict[str, str | float | None],
    "forecasts": list[Any],
}


@dataclass(frozen=True)
class Entry:
    """One forecast, with what it was made for and where."""

    forecast: Forecast
    made: str  # ISO time, UTC, in whole seconds as the start of a run
    task: str
    batch_size: int | None
    accumulate: int
    precision: str
    device: str
    environment: dict[str, Any]


def keep(
    folder: str | os.PathLike[str],
    forecasts: Sequence[Forecast],
    *,
    task: str,
    batch_size: int | None,
    accumulate: int,
    precision: str,
    device: str,
    environment: Mapping[str, Any],
    made: datetime | None = None,
) -> Path:
    """Add forecasts to the ledger of a runs folder and return its path; OSError where that cannot be written.

    Args:
        folder: The parent of run folders, `runs/` by default on the command line.
        forecasts: Those of one plan; one that is not feasible is kept too.
        task: The task's name, as its runs record it.
        batch_size: The task's; a forecast with one of its own was made for that.
        accumulate: Steps per update.
        precision: `fp32` or `bf16`.
        device: The kind of device, such as `cpu` or `cuda`; where ranks have different ones, all of them with commas.
        environment: Machine and versions, as `record.run.environment()` gives them.
        made: When; now unless given.
    """
    missing = [name for name in MACHINE if name not in environment]
    if missing:
        raise BadInput(f"a forecast is kept with the machine it is for (missing: {', '.join(missing)})")
    common = {
        "schema": SCHEMA,
        "made": (made or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds"),
        "task": task,
        "batch_size": batch_size,
        "accumulate": accumulate,
        "precision": precision,
        "device": device,
        "environment": dict(environment),
    }
    parts = [forecasts[start : start + MOST_IN_A_LINE] for start in range(0, len(forecasts), MOST_IN_A_LINE)]
    lines = [finite({**common, "forecasts": [one.record() for one in part]}) for part in parts]
    file = Path(folder) / LEDGER_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    _append(file, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode())
    return file


def _append(file: Path, added: bytes) -> None:
    """All of it or nothing, after whatever others have added meanwhile."""
    fd = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a file", str(file))
        _lock(fd, file)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":  # whoever wrote last was killed meanwhile
            added = b"\n" + added
        try:
            while added:
                added = added[os.write(fd, added) :]
        except OSError as problem:  # a full disk: half a line would be of no use
            os.ftruncate(fd, size)
            raise OSError(problem.errno, problem.strerror, str(file)) from None
    finally:
        os.close(fd)


def _lock(fd: int, file: Path) -> None:
    """Until the file is closed. Others hold it for milliseconds; one that stands still must not keep us for ever."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise
            if time.monotonic() > until:
                raise OSError(errno.EAGAIN, "another process holds it", str(file)) from None
        time.sleep(0.01)


def read(folder: str | os.PathLike[str]) -> list[Entry]:
    """Every forecast in the ledger of a runs folder, oldest first; none where there is no ledger."""
    file = Path(folder) / LEDGER_FILE
    try:
        if not file.exists():
            return []
        if not file.is_file():  # a pipe would keep us waiting
            raise BadInput(f"{file} is not a file")
        lines = _newest(file).split(b"\n")
    except OSError as problem:
        raise BadInput(f"{file} cannot be read ({problem.strerror})") from None
    return [entry for line in lines for entry in _entries(line)]


def _newest(file: Path) -> bytes:
    """The content, or of a large one as many of the last lines as are read."""
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size <= LARGEST_LEDGER:
            return opened.read(LARGEST_LEDGER)
        opened.seek(size - LARGEST_LEDGER)
        return opened.read(LARGEST_LEDGER).partition(b"\n")[2]


def _entries(line: bytes) -> Iterator[Entry]:
    """The forecasts of a line that is whole and of a version that we know."""
    if not line.strip() or len(line) > LARGEST_LINE:
        return
    try:
        found = cleaned(json.loads(line))
    except (ValueError, RecursionError):
        return
    known = isinstance(found, dict) and fits(found.get("schema"), int) and found["schema"] <= SCHEMA
    if not known or not all(name in found and fits(found[name], form) for name, form in FIELDS.items()):
        return
    common = {name: found[name] for name in FIELDS if name != "forecasts"}
    if moment(common["made"]) is None:
        return
    for record in found["forecasts"]:
        if (forecast := _forecast(record)) is not None:
            yield Entry(forecast, **common)


def _forecast(record: Any) -> Forecast | None:
    """A forecast from plain data. A figure in another form is as good as missing; one without a name is none."""
    if not isinstance(record, dict) or not fits(record.get("strategy"), str) or not fits(record.get("ranks"), int):
        return None
    forms = _forms()
    known = {name: value for name, value in record.items() if name in forms and fits(value, forms[name])}
    for name in [name for name in known if name.endswith("interval") and known[name] is not None]:
        known[name] = tuple(known[name]) if known[name][0] <= known[name][1] else None
    return Forecast(**known)


@cache
def _forms() -> dict[str, Any]:
    return get_type_hints(Forecast)


def moment(text: str | None) -> datetime | None:
    """An ISO time, which is UTC where it does not say; None where it is none."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
