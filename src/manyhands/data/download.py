"""Fetch one file: go on where an earlier try ended, check the digest, and give it its name only when it is right.

What arrives is kept in `NAME.part` beside the target, so nobody ever reads half a file, and a process that is killed
loses nothing. Ranks that want the same file at the same time wait for the one that fetches it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ManyhandsError

TIMEOUT = 15.0  # seconds without a byte
FRUITLESS = 3  # tries in a row that bring nothing new, and we give up
PATIENCE = 1800.0  # seconds to wait for another process that fetches the same file


class DownloadFailed(ManyhandsError):
    """No address gave the right file; says what each one did."""


@dataclass(frozen=True)
class Remote:
    """Where a file can be had, and how to know it: (size, SHA-256) of each form in which it is published."""

    urls: tuple[str, ...]
    forms: tuple[tuple[int, str], ...]


def fetch(remote: Remote, target: Path, *, timeout: float = TIMEOUT, progress: bool = True) -> None:
    """Bring `target` here from the first address that has it."""
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    with _alone(target):
        for url in remote.urls:
            if target.exists():
                return
            try:
                with _bar(target.name, url, remote, progress) as show:
                    _checked(url, remote, part, timeout, show)
                os.replace(part, target)
            except (OSError, http.client.HTTPException, _Wrong) as error:
                failures.append(f"{urllib.parse.urlsplit(url).hostname}: {_reason(error)}")
    if not target.exists():
        raise DownloadFailed("; ".join(failures))


class _Wrong(Exception):
    """What came is not the file."""


def _checked(url: str, remote: Remote, part: Path, timeout: float, show: Callable[[int], None]) -> None:
    """Fetch and check. What an earlier try left may be of another file: if it does not fit, once more from nothing."""
    resumed = _size(part) > 0
    _transfer(url, remote, part, timeout, show)
    found = (_size(part), _sha256(part))
    if found in remote.forms:
        return
    part.unlink()
    if resumed:
        _checked(url, remote, part, timeout, show)
    else:
        expected = " or ".join(f"{size:,} bytes with SHA-256 {digest}" for size, digest in remote.forms)
        raise _Wrong(f"expected {expected}, found {found[0]:,} bytes with {found[1]}")


def _transfer(url: str, remote: Remote, part: Path, timeout: float, show: Callable[[int], None]) -> None:
    """Ask for what is missing until the server says that was all, as long as asking helps."""
    fruitless = 0
    while True:
        before = _size(part)
        problem: object
        try:
            missing = _go_on(url, remote, part, timeout, show)
            if not missing:
                return
            problem = f"the connection ended {missing:,} bytes early"
        except urllib.error.HTTPError as error:
            if error.code != 416 or not before:
                raise
            error.close()
            if before in dict(remote.forms):  # nothing is missing; is it right?
                return
            part.unlink()  # more than there is: of another file
            problem = error
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            problem = error
        fruitless = 0 if _size(part) > before else fruitless + 1
        if fruitless == FRUITLESS:
            raise _Wrong(f"{_reason(problem)} ({FRUITLESS} tries)")


def _go_on(url: str, remote: Remote, part: Path, timeout: float, show: Callable[[int], None]) -> int:
    """One request, from the byte where `part` ends; returns how many bytes the server promised and did not send."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "manyhands"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=timeout) as response:
        if response.status != 206 or not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0  # a server that knows no ranges sends it all again
        sizes, length = sorted(dict(remote.forms)), response.headers.get("Content-Length")
        total = sizes[-1] if length is None else have + int(length)
        if total not in sizes:
            raise _Wrong(f"the server offers {total:,} bytes, expected {' or '.join(f'{size:,}' for size in sizes)}")
        with part.open("ab" if have else "wb") as file:
            while block := response.read1(1 << 18):
                have += len(block)
                if have > total:
                    raise _Wrong(f"the server sends more than the {total:,} bytes expected")
                file.write(block)
                show(have)
    return 0 if length is None and have in sizes else total - have


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: object) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Only one process at a time fetches a target; the others wait until it is there or its fetcher is gone."""
    path = target.with_name(target.name + ".lock")
    deadline = time.monotonic() + PATIENCE
    with path.open("w") as lock:
        while not target.exists():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DownloadFailed(f"waited {PATIENCE:.0f} s for another process that fetches {target}") from None
                time.sleep(0.1)
        yield
        if target.exists():  # else it stays: two locks of one name would let two processes fetch at once
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _bar(name: str, url: str, remote: Remote, progress: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; a single line where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console, size = Console(stderr=True), remote.forms[0][0]
    if not progress or not console.is_terminal:
        if progress:
            console.print(f"downloading {name} ({size:,} bytes) from {url}", soft_wrap=True, highlight=False)
        yield lambda have: None
        return
    columns = (TextColumn("downloading {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=size)
        yield lambda have: bar.update(task, completed=have)
