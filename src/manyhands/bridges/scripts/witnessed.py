"""Runs of a script that are watched, from the caller's side: the same start again and again, with one thing changed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .launch import torchrun_environment

SECONDS = 300.0  # for the first run; those with a change have some times what it took
TIMES, AT_LEAST = 6, 30.0
HURRY_SECONDS = 10.0  # for what comes after the updates that are watched


@dataclass
class Seen:
    """One run: the facts of every rank, and why it is not whole, if it is not."""

    ranks: list[dict[str, Any]]
    arrays: list[dict[str, np.ndarray]] = field(repr=False)
    problem: str | None = None

    @property
    def updates(self) -> int:
        """Made on every rank."""
        return min((len(one["updates"]) for one in self.ranks), default=0)

    def array(self, name: str, rank: int) -> np.ndarray | None:
        found = self.arrays[rank].get(name)
        return None if found is None or found.dtype == object else found


class Stage:
    """Where a script is run; a context. `ranks` sets the threads of every run, one rank included."""

    def __init__(self, command: Sequence[str], ranks: int, steps: int):
        self._command, self._most, self._steps = list(command), ranks, steps
        self._seconds = SECONDS

    def __enter__(self) -> Stage:
        environment = {**os.environ, **torchrun_environment(self._most)}
        start = [sys.executable, "-m", f"{__package__}.zygote"]
        self._process = subprocess.Popen(
            start, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def run(self, ranks: int, changes: dict[str, Any] | None = None, hurries: bool = False) -> Seen:
        """The script on so many ranks, with these changes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="manyhands-verify-") as folder:
            order = {
                "command": self._command,
                "ranks": ranks,
                "steps": self._steps,
                "changes": changes or {},
                "hurries": hurries,
                "hurry_seconds": HURRY_SECONDS,
                "folder": folder,
                "environment": torchrun_environment(ranks),
                "seconds": self._seconds,
            }
            began = time.monotonic()
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError("the process that starts the ranks has ended")
            seen = _read(Path(folder), ranks, json.loads(line), self._seconds)
            if self._seconds == SECONDS:
                self._seconds = min(SECONDS - 1, max(AT_LEAST, TIMES * (time.monotonic() - began)))
            return seen


def _read(folder: Path, ranks: int, answer: dict[str, Any], seconds: float) -> Seen:
    facts, arrays, problem = [], [], None
    for rank in range(ranks):
        stored = folder / f"rank{rank}.json"
        one = json.loads(stored.read_text()) if stored.exists() else {"updates": [], "failure": None, "missing": True}
        facts.append(one)
        with contextlib.ExitStack() as stack:
            path = folder / f"rank{rank}.npz"
            loaded = stack.enter_context(np.load(path)) if path.exists() else {}
            arrays.append({name: loaded[name] for name in loaded})
        if one["failure"] and problem is None:
            problem = f"rank {rank} of {ranks}: {one['failure']['line']}" if ranks > 1 else one["failure"]["line"]
    if problem is None and answer["late"] and any(one.get("missing") for one in facts):
        problem = f"not done after {seconds:.0f} seconds"
    if problem is None and any(one.get("missing") for one in facts):
        rank = next(rank for rank, one in enumerate(facts) if one.get("missing"))
        errors = folder / f"errors{rank}"
        lines = errors.read_text(errors="replace").strip().splitlines() if errors.exists() else []
        problem = f"rank {rank} of {ranks} died (exit code {answer['codes'][rank]})" + (
            f": {lines[-1]}" if lines else ""
        )
    return Seen(facts, arrays, problem)
