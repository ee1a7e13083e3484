"""`manyhands watch`: a running run in the terminal, read from its folder; ending it leaves the run alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .errors import BadInput
from .live import LIVE_FILE
from .measure.run import RECORD_FILE, Run

BLOCKS = "▁▂▃▄▅▆▇█"
STALE_SECONDS = 10.0


def find(run: Path | None, root: Path = Path("runs")) -> Path:
    """The folder to watch: the one named, or the one under runs/ that was written to last."""
    if run is not None:
        if not (run / LIVE_FILE).exists() and not (run / RECORD_FILE).exists():
            raise BadInput(f"no run at {run}: neither {LIVE_FILE} nor {RECORD_FILE} is there")
        return run
    running = sorted(root.rglob(LIVE_FILE), key=lambda path: path.stat().st_mtime) if root.is_dir() else []
    if not running:
        raise BadInput(f"no run is running under {root}/; name its folder: manyhands watch FOLDER")
    return running[-1].parent


def watch(folder: Path, every: float = 0.5, limit: float | None = None) -> None:
    """Show the run until it ends, for at most `limit` seconds."""
    began = time.monotonic()
    out = Console()
    with Live(console=out, auto_refresh=False, transient=not out.is_terminal) as screen:
        while True:
            state = _read(folder)
            if state is None:
                break
            if out.is_terminal:
                screen.update(picture(state), refresh=True)
            if limit is not None and time.monotonic() - began > limit:
                return
            time.sleep(every)
    if (folder / RECORD_FILE).is_file():
        from .terminal import show_run

        run = Run.load(folder, weights=False)
        show_run(run)


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads((folder / LIVE_FILE).read_text())
    except (OSError, ValueError):
        return None
    return state


def picture(state: dict[str, Any], width: int = 60) -> Group:
    """Progress, the loss so far, where the time goes, and what each rank is at."""
    step, steps = state.get("step") or 0, state.get("steps") or 1
    done = round(width * step / steps)
    lines = [Text(f"{state['task']} · {state['strategy']} · {state['ranks']} ranks on {state['device']}", style="bold")]
    rate = state.get("samples_per_second")
    speed = f", {rate:,.0f} samples/s" if rate else ""
    lines.append(
        Text(f"{'━' * done}{'─' * (width - done)} step {step:,} of {steps:,}, epoch {state.get('epoch')}{speed}")
    )
    curve = [value for _, value in state.get("curve", [])]
    if curve:
        lines.append(Text(f"loss {curve[-1]:8.4f}  {sparkline(curve, width)}"))
    for epoch, accuracy in state.get("tested", [])[-3:]:
        if accuracy is not None:
            lines.append(Text(f"epoch {epoch}: test accuracy {accuracy:.2%}"))
    phases = state.get("phases_ms") or {}
    total = sum(phases.values()) or 1.0
    for name, value in phases.items():
        if value > 0.005 * total:
            lines.append(Text(f"{name:<13} {value:8.2f} ms {'█' * round(30 * value / total)}"))
    for rank, at_step, phase in state.get("beats") or []:
        lines.append(Text(f"rank {rank}: step {at_step}, {phase}"))
    silent = time.time() - state["time"]
    if silent > STALE_SECONDS:
        lines.append(Text(f"nothing heard for {silent:.0f} s", style="bold"))
    return Group(*lines)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as a row of blocks."""
    if len(values) > width:
        share = len(values) / width
        values = [values[int(number * share)] for number in range(width)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BLOCKS[int((value - low) / span * (len(BLOCKS) - 1))] for value in values)
