"""A real control group with a quota of one core, where tests may make one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PLACES = ((Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us"), (Path("/sys/fs/cgroup"), "cpu.max"))


@contextmanager
def one_core_quota() -> Iterator[list[str]]:
    """What to put before a command so that it runs within the quota."""
    folder = _made()
    if folder is None:
        pytest.skip("no control group with a quota can be made here (it takes root and the cpu controller)")
    try:
        yield ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        folder.rmdir()


def _made() -> Path | None:
    for parent, name in PLACES:
        folder = parent / f"manyhands-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / name).write_text("100000")
            return folder
        except OSError:
            folder.rmdir()
    return None
