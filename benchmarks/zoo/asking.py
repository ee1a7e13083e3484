"""Asking a tool about one plant: its command line, its JSON, and how long it took."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .plants import Plant

OURS = {"speed": "diagnose", "correctness": "verify"}
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """What a tool said of one plant, or of its twin."""

    plant: Plant
    healthy: bool
    command: tuple[str, ...]
    said: dict[str, Any] | None  # the JSON document; None where there was none
    code: int | None  # None: it took too long
    seconds: float
    error: str  # the last line it wrote to standard error

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "plant": self.plant.name,
            "kind": self.plant.kind,
            "healthy": self.healthy,
            "expected": "none" if self.healthy else self.plant.cause,
            "command": list(self.command),
            "code": self.code,
            "seconds": self.seconds,
            "error": self.error,
            "answer": self.said,
        }


def ask(plant: Plant, healthy: bool, tool: str | None, apply: bool, seconds: float) -> Answer:
    """One run of the tool; it ends with everything it has started when its time is over."""
    words = shlex.split(tool) if tool else [sys.executable, "-m", "manyhands", OURS[plant.kind]]
    more = ["--json", "--apply"] if apply and plant.kind == "speed" else ["--json"]
    command = [*words, *plant.words(healthy, *more)]
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=seconds)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        code = None
    lines = err.strip().splitlines()
    took = time.monotonic() - began
    return Answer(plant, healthy, tuple(command), document(out), code, took, lines[-1] if lines else "")


def document(text: str) -> dict[str, Any] | None:
    """The JSON document on a tool's standard output."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def beside_burner(on: bool) -> Iterator[None]:
    """With `on`, a process keeps one core busy meanwhile."""
    if not on:
        yield
        return
    burner = multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
    burner.start()
    try:
        yield
    finally:
        burner.kill()
        burner.join()


def _burn() -> None:
    while True:
        pass
