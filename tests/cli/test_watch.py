"""`manyhands watch` in a terminal of its own: it moves, it fits, and ending it leaves the run alone."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from threading import Event, Thread

import pytest
from rich.console import Console

import manyhands as mh
from manyhands.cli import watch as watching
from manyhands.errors import BadInput

PROGRAM = [sys.executable, "-m", "manyhands"]
TASK = "glyphs:train=640,test=100"
STATE = {
    "task": "glyphs", "strategy": "ddp", "ranks": 2, "device": "cpu", "step": 50, "steps": 200, "epoch": 1, "epochs": 4,
    "samples_per_second": 4321.0, "phases_ms": {"forward": 3.0, "backward": 5.0, "wait": 0.0}, "time": 0.0,
    "curve": [[step, 3.0 / step] for step in range(1, 300)], "tested": [[1, 0.75]],
    "beats": [[0, 50, "forward"], [1, 50, "wait"]],
}  # fmt: skip


@pytest.mark.parametrize("width", [60, 80])
def test_the_picture_fits_and_holds_curve_phases_and_ranks(width: int) -> None:
    """The bar and the curve used to wrap at 80 columns."""
    text = StringIO()
    Console(file=text, width=width).print(watching.picture(STATE, width))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0] == "glyphs · ddp · 2 ranks on cpu"
    assert lines[2].count("━") == width // 4
    assert (
        sum(line.startswith(("forward", "backward", "rank 0:", "rank 1:", "loss", "epoch 1:")) for line in lines) == 6
    )
    assert lines[-1].startswith("nothing heard for")


def test_what_to_watch() -> None:
    with pytest.raises(BadInput, match="no run is in progress under runs/"):
        watching.find(None)
    with pytest.raises(BadInput, match=r"no run at nowhere: neither live\.json nor run\.json"):
        watching.find(Path("nowhere"))
    for name in ("old", "all/ddp"):
        folder = Path("runs", name)
        folder.mkdir(parents=True)
        (folder / "live.json").write_text(json.dumps(STATE))
    os.utime("runs/old/live.json", (1, 1))
    assert watching.find(None) == watching.find(Path("runs/all")) == Path("runs/all/ddp")
    assert watching.find(Path("runs/old")) == Path("runs/old")


@contextmanager
def terminal(words: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command in a terminal of 80 columns, and the descriptor of its screen."""
    screen, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        words, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
    )
    os.close(inside)
    try:
        yield process, screen
    finally:
        process.kill()
        process.wait()
        os.close(screen)


def read_until(screen: int, pattern: str, seconds: float = 60) -> str:
    text, until = "", time.monotonic() + seconds
    while not re.search(pattern, text):
        ready, _, _ = select.select([screen], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"{pattern!r} did not appear: {text!r}"
        try:
            text += os.read(screen, 1 << 16).decode(errors="replace")
        except OSError:  # the terminal's other end is gone
            return text
    return text


def live_step() -> int:
    return int(json.loads(Path("r/live.json").read_text())["step"])


def test_it_moves_and_ending_it_leaves_the_run_alone(nothing_left: None) -> None:
    enough = Event()
    run = Thread(
        target=mh.fit,
        args=(mh.load_task(TASK), "ddp"),
        kwargs={
            "ranks": 2,
            "threads": 1,
            "epochs": 10_000,
            "run_dir": "r",
            "progress": False,
            "on_epoch": lambda figures: enough.is_set(),
        },
    )
    run.start()
    try:
        until = time.monotonic() + 60
        while not Path("r/live.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        with terminal([*PROGRAM, "watch", "r"]) as (watcher, screen):
            first = read_until(screen, r"step [\d,]+ of .*(?s:.*)rank 1: step")
            seen = re.findall(r"step ([\d,]+) of", first)[0]
            read_until(screen, rf"step (?!{seen} )[\d,]+ of")
            watcher.send_signal(signal.SIGINT)
            assert "stopped watching; the run continues" in read_until(screen, "the run continues")
            assert watcher.wait(60) == 0
        before, until = live_step(), time.monotonic() + 60
        while live_step() == before and time.monotonic() < until:
            time.sleep(0.05)
        assert live_step() > before
        assert run.is_alive()
    finally:
        enough.set()
        run.join(60)
    assert mh.Run.load("r").status == "stopped"
