"""A run folder is held by one run at a time, and found writable before anything starts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import BadInput
from .live import LIVE_FILE
from .run import EMA_WEIGHTS_FILE, RECORD_FILE, TIMELINE_FILE, WEIGHTS_FILE
from .whole_file import PART

LOCK = ".running"
CHECKPOINTS = "checkpoints"  # the folder of them, inside the run folder


@contextlib.contextmanager
def held(run_dir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hold the folder while a run writes into it. The kernel lets go of it when the process ends, however it ends."""
    if run_dir is None:
        yield
        return
    folder = Path(run_dir)
    lock = _take(folder)
    try:
        _sweep(folder)
        yield
    finally:
        _sweep(folder)
        with contextlib.suppress(OSError):
            os.unlink(folder / LOCK)
        os.close(lock)


def check_writable(run_dir: str | os.PathLike[str], option: str = "--run-dir") -> None:
    """Refuse a folder that cannot be made, or not be written into, without making it: a comparison asks before it starts."""
    folder = Path(run_dir).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise _not_writable(run_dir, os.strerror(errno.ENOTDIR), option)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise _not_writable(run_dir, os.strerror(errno.EACCES), option)


def _not_writable(folder: str | os.PathLike[str], reason: str, option: str = "--run-dir") -> BadInput:
    return BadInput(f"the run folder {folder} cannot be written ({reason}); use another {option}")


def _sweep(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left; nobody writes now."""
    for old in (folder / CHECKPOINTS).glob(".step-*.old"):
        published = old.with_name(old.name.removeprefix(".").removesuffix(".old"))
        if not published.exists():  # killed between taking the old one away and publishing the new one
            os.rename(old, published)
    for part in (folder / CHECKPOINTS).glob(".step-*"):
        shutil.rmtree(part, ignore_errors=True)
    for name in (RECORD_FILE, TIMELINE_FILE, WEIGHTS_FILE, EMA_WEIGHTS_FILE, LIVE_FILE):
        with contextlib.suppress(OSError):
            (folder / (name + PART)).unlink(missing_ok=True)


def _take(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # who can read it can hold it
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.stat(folder / LOCK)):
                    break
            except FileNotFoundError:
                pass  # the run before has just ended and removed it
            except OSError as problem:
                other = os.pread(fd, 32, 0).decode(errors="replace").strip()
                os.close(fd)
                if problem.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                    raise
                raise BadInput(
                    f"the run folder {folder} is in use by another run (process {other or 'unknown'}); "
                    "wait for it, or use another --run-dir"
                ) from None
            os.close(fd)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise _not_writable(folder, reason) from None
