"""The live side of a fit: what the machine does meanwhile, and a small file that `manyhands watch` and `serve` read.

The file is written by the caller, whole or not at all, at most twice a second; whoever reads it cannot disturb the run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from .run import PHASES, Run, finite
from .thinned import thinned
from .usage import Usage
from .whole_file import whole

LIVE_FILE = "live.json"
WRITE_SECONDS = 0.5
CURVE = 400  # points of the loss curve, and of the accuracies, at most
LONG = ("losses", "epochs", "per_rank")  # of the record: what grows with the fit


class Live:
    """Hears what rank 0 tells and keeps the latest of it in the run folder."""

    def __init__(self, run: Run, run_dir: str | os.PathLike[str] | None):
        self.run = run
        self.usage = Usage()
        self._path = Path(run_dir) / LIVE_FILE if run_dir is not None else None
        self._curve: list[tuple[int, float]] = []
        self._every, self._heard = 1, 0  # of the losses heard, every so many'th is kept
        self._progress: dict[str, Any] = {}
        self._written = 0.0

    def hear(self, kind: str, content: Any) -> None:
        if kind == "progress":
            self.usage.sample()
            self._progress = content
            if content.get("loss") is not None:
                self._keep(content["step"], content["loss"])
            if time.monotonic() - self._written > WRITE_SECONDS:
                self._write()
        elif kind == "epoch":
            self.usage.pause()

    def _keep(self, step: int, loss: float) -> None:
        """A point of the curve. When there are many, every other one goes: the curve always spans the whole run."""
        if self._heard % self._every == 0:
            self._curve.append((step, loss))
        self._heard += 1
        if len(self._curve) > CURVE:
            self._curve, self._every = self._curve[::2], 2 * self._every

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._path is None:
            return
        steps = max(1, self._progress.get("step", 1))
        phases = self._progress.get("phases") or []
        state = {
            "pid": os.getpid(),
            "host": platform.node(),
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
            "curve": self._curve,
            "tested": [[entry["epoch"], entry.get("test_accuracy")] for entry in thinned(self.run.epochs, CURVE)],
            **self.usage.now(),
            "run": self._record(),
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with whole(self._path) as scratch:
                scratch.write_text(json.dumps(finite(state)))
        except OSError:
            self._path = None  # the run goes on without being watched

    def _record(self) -> dict[str, Any]:
        """What the record says so far, apart from what grows."""
        known = {item.name: getattr(self.run, item.name) for item in dataclasses.fields(self.run)}
        known["usage"] = self.usage.result()
        return {name: value for name, value in known.items() if name not in LONG and value not in (None, [], {})}

    def close(self) -> None:
        self.run.usage = self.usage.result()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
