"""The live side of a fit: what the machine does meanwhile, and a small file that `manyhands watch` reads.

The file is written by the caller, whole or not at all, at most twice a second; whoever reads it cannot disturb the run.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from .run import PHASES, Run, finite
from .usage import Usage
from .whole_file import whole

LIVE_FILE = "live.json"
WRITE_SECONDS = 0.5
CURVE = 400  # points of the loss curve that are kept


class Live:
    """Hears what rank 0 tells and keeps the latest of it in the run folder."""

    def __init__(self, run: Run, run_dir: str | os.PathLike[str] | None):
        self.run = run
        self.usage = Usage()
        self._path = Path(run_dir) / LIVE_FILE if run_dir is not None else None
        self._curve: deque[tuple[int, float]] = deque(maxlen=CURVE)
        self._progress: dict[str, Any] = {}
        self._written = 0.0

    def hear(self, kind: str, content: Any) -> None:
        if kind == "progress":
            self.usage.sample()
            self._progress = content
            if content.get("loss") is not None:
                self._curve.append((content["step"], content["loss"]))
            if time.monotonic() - self._written > WRITE_SECONDS:
                self._write()
        elif kind == "epoch":
            self.usage.pause()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._path is None:
            return
        steps = max(1, self._progress.get("step", 1))
        phases = self._progress.get("phases") or []
        state = {
            "pid": os.getpid(),
            "time": time.time(),
            "task": self.run.task,
            "strategy": self.run.label,
            "ranks": self.run.ranks,
            "device": self.run.device,
            **{
                key: self._progress.get(key)
                for key in ("step", "steps", "epoch", "epochs", "loss", "samples_per_second", "beats")
            },
            "phases_ms": dict(zip(PHASES, (value / steps / 1e6 for value in phases), strict=False)),
            "curve": list(self._curve),
            "tested": [[entry["epoch"], entry.get("test_accuracy")] for entry in self.run.epochs],
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with whole(self._path) as scratch:
                scratch.write_text(json.dumps(finite(state)))
        except OSError:
            self._path = None  # the run goes on without being watched

    def close(self) -> None:
        self.run.usage = self.usage.result()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
