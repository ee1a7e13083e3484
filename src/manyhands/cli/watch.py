"""`manyhands watch`: a running run in the terminal, read from its folder; ending it leaves the run alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ..errors import BadInput
from ..record.live import LIVE_FILE
from ..record.live_state import STALE_SECONDS, State, read_state
from ..record.run import RECORD_FILE, Run
from .terminal import amount, console, phase_table, show_run

BLOCKS = "▁▂▃▄▅▆▇█"
WIDEST = 80  # columns
MOST_LINES = 256  # of ranks or phases


def find(run: Path | None, root: Path = Path("runs")) -> Path:
    """The folder to watch: the one named, else the run below it (below runs/) that was written to last."""
    if run is not None and ((run / LIVE_FILE).exists() or (run / RECORD_FILE).exists()):
        return run
    below = run or root
    running = sorted(below.rglob(LIVE_FILE), key=_written) if below.is_dir() else []
    if running:
        return running[-1].parent
    if run is not None:
        raise BadInput(f"no run at {run}: neither {LIVE_FILE} nor {RECORD_FILE} is there or below")
    raise BadInput(f"no run is in progress under {root}/; name its folder: manyhands watch FOLDER")


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # that run has just ended
        return 0.0


def watch(folder: Path, every: float = 0.5, limit: float | None = None) -> None:
    """Show the run until it ends, for at most `limit` seconds. Ctrl-C ends the watching, not the run."""
    out = console()
    with Live(console=out, auto_refresh=False, transient=not out.is_terminal) as screen:
        try:
            ended = _follow(folder, out, screen, every, limit)
        except KeyboardInterrupt:
            ended = False
    if not ended:
        print("stopped watching; the run continues", file=sys.stderr)
    elif (folder / RECORD_FILE).is_file():
        show_run(Run.load(folder, weights=False))


def _follow(folder: Path, out: Console, screen: Live, every: float, limit: float | None) -> bool:
    """Draw what the run says until it has ended (true) or the time is up."""
    began = time.monotonic()
    while (state := read_state(folder)) is not None:
        if out.is_terminal:
            screen.update(picture(state, min(out.width, WIDEST)), refresh=True)
        if limit is not None and time.monotonic() - began > limit:
            return False
        time.sleep(every)
    return True


def picture(state: State, width: int = WIDEST) -> Group:
    """Progress, the loss so far, where the time goes, and what each rank is at."""
    step, steps = state["step"] or 0, state["steps"]
    rate = state["samples_per_second"]
    speed = f", {rate:,.0f} samples/s" if rate else ""
    lines: list[RenderableType] = [
        Text(
            f"{state['task']} · {state['strategy']} · {amount(state['ranks'], 'rank')} on {state['device']}",
            style="bold",
        ),
    ]
    if steps is None:  # a script of one's own does not say how far it is going
        lines.append(Text(f"step {step:,}{speed}"))
    else:
        done = round(width * min(1.0, max(0.0, step / max(1, steps))))
        lines.append(Text(f"step {step:,} of {steps:,}, epoch {state['epoch']} of {state['epochs']}{speed}"))
        lines.append(Text(f"{'━' * done}{'─' * (width - done)}"))
    curve = [value for _, value in state["curve"] if value is not None]
    if curve:
        lines.append(Text(f"loss {curve[-1]:8.4f} {sparkline(curve, width - 14)}"))
    for epoch, accuracy in state["tested"][-3:]:
        if accuracy is not None:
            lines.append(Text(f"epoch {epoch}: test accuracy {100 * accuracy:.2f} %"))
    lines.append(phase_table(dict(list(state["phases_ms"].items())[:MOST_LINES])))
    for rank, at_step, phase in (state["beats"] or [])[:MOST_LINES]:
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
