"""Running runs for the tests of the live page, written as a fit writes them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from manyhands.record import live
from manyhands.record.run import PHASES, Run


def train(folder: Path, steps: range, run: Run | None = None, total: int = 400) -> live.Live:
    """A run that has made these steps, by way of the writer that fits use."""
    training = run or Run("glyphs", "ddp", ranks=2, device="cpu", batch_size=32, started="2026-03-02T10:11:12+00:00")
    writer = live.Live(training, folder)
    for step in steps:
        tell(writer, step, total)
    return writer


def tell(writer: live.Live, step: int, total: int = 400) -> None:
    """What rank 0 says after a step."""
    writer._written = float("-inf")  # every word is written, however soon it follows
    writer.hear(
        "progress",
        {
            "step": step,
            "steps": total,
            "epoch": 1,
            "epochs": 4,
            "loss": 3.0 / step,
            "samples_per_second": 4321.0,
            "phases": [step * 1_000_000] * len(PHASES),
            "beats": [(0, step, "forward"), (1, step, "wait")],
        },
    )


def change(folder: Path, **values: Any) -> None:
    """Values of a live file replaced."""
    file = folder / live.LIVE_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def silent_since(folder: Path, seconds: float) -> None:
    change(folder, time=time.time() - seconds)
