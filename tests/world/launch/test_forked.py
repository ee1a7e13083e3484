"""Fits in a child that was forked after its parent had computed."""

from __future__ import annotations

import os
import select
import signal

import manyhands as mh
from tests.breakable import toy


def test_a_fit_in_a_forked_child_ends(two_threads: None) -> None:
    """Torch's threads did not come along with the fork: the first forward pass waited for them for ever."""
    expected = mh.fit(toy(), max_steps=3, progress=False).weights_sha256
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(mh.fit(toy(), max_steps=3, progress=False).weights_sha256).encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        assert select.select([read], [], [], 120)[0], "the child hangs"
        assert os.read(read, 100).decode() == expected
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
