"""One rank of a script: its process, from the hooks to the figures. Started as

    python -m manyhands.bridges.scripts BOARD FIGURES RANK RANKS [-m] SCRIPT ARGS...

with the descriptors of the board and of a file for the figures. The script finds everything as if Python had started it:
arguments, path, `__main__`, exit codes. What it raises is told to the caller, without the frames of this package.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from ...record.clock import BEAT_PHASE
from ...record.run import PHASES
from .board import ENDED, Board
from .hooks import Hooks
from .on_import import OnImport
from .steps import COMMUNICATION, UPDATE, Steps

OURS = (str(Path(__file__).parent), "<frozen runpy>", "<frozen importlib")
INTERRUPTED = 130


def main() -> None:
    board_fd, figures_fd, rank, ranks, *command = sys.argv[1:]
    end_with_parent()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored in background jobs; here only the caller sends it
    for fd in (board_fd, figures_fd):
        os.set_inheritable(int(fd), False)
    board = Board(int(ranks), int(board_fd))
    row = board.row(int(rank))
    steps = Steps(row, board.floats(int(rank)))
    measured: list[Hooks] = []
    unhooked: list[str] = []

    def hook() -> None:
        try:
            measured.append(Hooks(steps))
        except Exception as problem:  # another torch than we know: the script goes on all the same
            unhooked.append(f"nothing could be measured with this torch ({problem})")

    OnImport("torch", hook)
    process = os.getpid()
    code: int = 0
    failure: dict[str, Any] | None = None
    try:
        run_as_main(command)
    except SystemExit as leaving:
        code = exit_code(leaving.code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException as problem:
        code = 1
        step, phase = board.where(int(rank))
        failure = {"step": step, "phase": phase, "time": time.monotonic(), **described(problem)}
    if os.getpid() != process:  # a child that the script forked
        sys.exit(code)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the figures are whole, or not there
    row[BEAT_PHASE] = ENDED
    figures = {"rank": int(rank), "code": code, "failure": failure, "unhooked": unhooked}
    with contextlib.suppress(Exception):  # a broken device, say: what the board has stays
        figures |= _figures(steps, measured[0] if measured else None)
    with os.fdopen(int(figures_fd), "w") as file:
        json.dump(figures, file)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def run_as_main(command: list[str]) -> None:
    """Run the script as Python itself would."""
    if command[0] == "-m":
        import runpy

        sys.argv = command[1:]
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd()
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = command
    path = os.path.abspath(command[0])
    if os.path.isdir(path) or not path.endswith(".py"):  # a folder or an archive with a __main__.py
        import runpy

        runpy.run_path(path, run_name="__main__")
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = ModuleType("__main__")
    module.__file__, module.__loader__ = path, SourceFileLoader("__main__", path)
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)


def exit_code(code: object) -> int:
    """What Python makes of sys.exit(code)."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def described(problem: BaseException) -> dict[str, str]:
    """The traceback as if the script had been started directly, and its last line."""
    told = traceback.TracebackException.from_exception(problem)
    pending, seen = [told], set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.stack = traceback.StackSummary.from_list(
            [frame for frame in one.stack if not frame.filename.startswith(OURS)]
        )
        pending += [other for other in (one.__cause__, one.__context__, *(one.exceptions or ())) if other]
    line = "".join(traceback.format_exception_only(problem)).strip().splitlines()
    return {"traceback": "".join(told.format()), "line": line[-1] if line else type(problem).__name__}


def _figures(steps: Steps, hooks: Hooks | None) -> dict[str, Any]:
    """What this rank measured in the whole run."""
    steps.finish()
    totals = steps.totals
    figures: dict[str, Any] = {"used_torch": hooks is not None, "steps": totals.steps}
    if hooks is None:
        return figures
    import torch

    hooks.collectives.read(last=True)
    totals.marks.end(totals.steps)
    device = getattr(steps.times, "device", torch.device("cpu"))
    seen = {PHASES[number] for number in steps.seen} | {"other"}
    if hooks.collectives.used or os.environ.get("WORLD_SIZE", "1") == "1":
        seen.add(PHASES[COMMUNICATION])
    return figures | {
        "phases": totals.phases,
        "seen": sorted(seen),
        "step_times": totals.step_times.plain(),
        "trace": totals.trace,
        "marks": totals.marks.kept,
        "losses": totals.losses(),
        "bytes": totals.bytes,
        "overlapped": totals.overlapped,
        "late": 0,
        "samples": totals.samples,
        "samples_known": bool(totals.loads) and not totals.unknown,
        "made": totals.steps,
        "counts": totals.counts,
        "backwards": totals.backwards,
        "updates": totals.updates,
        "lockstep": hooks.collectives.used,
        "device": str(device),
        "host": socket.gethostname(),
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": _peak_memory(device),
        "evaluation": steps.evaluation,
        "extra": {},
        "repeats": False,
        "trains": UPDATE in steps.seen,
    }


def _peak_memory(device: Any) -> int:
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def end_with_parent() -> None:
    """Whatever happens to the caller, this process does not outlive it (where Linux can promise that)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
