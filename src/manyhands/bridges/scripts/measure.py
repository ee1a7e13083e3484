"""measure(): run a script as it is on some ranks, and return its record. The caller's side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import BadInput, RankFailed
from ...record.live import Live
from ...record.run import PHASES, Run
from ...record.run_folder import held
from .board import LOSS, SAMPLES, STEPS, TOTALS, Board
from .launch import Ranks
from .measured import failure, fill, killed

STRATEGY = "script"


@dataclass(frozen=True)
class Script:
    """What is run: a file, or with `module` the name of a module, and the arguments that are the script's own.

    `ranks`: None starts it as plain Python would, a number as torchrun would.
    """

    script: str
    arguments: Sequence[str] = ()
    module: bool = False
    ranks: int | None = None

    @property
    def name(self) -> str:
        return self.script if self.module else Path(self.script).resolve().name

    @property
    def command(self) -> list[str]:
        return [*(["-m"] if self.module else []), self.script, *self.arguments]

    def check(self) -> None:
        if self.ranks is not None and self.ranks < 1:
            raise BadInput(f"--ranks must be 1 or more (found {self.ranks})")
        if self.module:
            self._check_module()
            return
        path = Path(self.script)
        if not path.exists():
            raise BadInput(
                f"no script at {self.script}; name a Python file (or a module: manyhands run -m package.train)"
            )
        if path.is_dir() and not (path / "__main__.py").is_file():
            raise BadInput(f"{self.script} is a folder without a __main__.py; name the Python file to run")
        if path.is_file() and path.suffix not in (".py", ".pyz", ".zip"):
            raise BadInput(f"{self.script} is not a Python script (it does not end in .py); name a Python file")

    def _check_module(self) -> None:
        import sys

        here = str(Path.cwd())
        sys.path.insert(0, here)
        try:
            found = find_spec(self.script)
        except (ImportError, ValueError):
            found = None
        finally:
            sys.path.remove(here)
        if found is None:
            raise BadInput(f"no module named {self.script}; name a module that `python -m` would find")


def measure(
    script: Script,
    run_dir: str | Path | None = None,
    name: str | None = None,
    command: str | None = None,
    stdout: int | None = None,
) -> tuple[Run, int]:
    """Run the script and return its record and its exit code; a rank that fails raises RankFailed with the record.

    `stdout`: a descriptor for what it prints.
    """
    script.check()
    run = Run(
        task=name or script.name,
        strategy=STRATEGY,
        ranks=script.ranks or 1,
        command=command,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=None,
        precision=None,
        accumulate=None,
    )
    with held(run_dir):
        live = Live(run, run_dir)
        began = time.monotonic()
        processes = Ranks(script.command, run.ranks, script.ranks is not None, stdout)
        interrupted = False
        try:
            processes.wait(lambda board: _tell(live, board))
        except KeyboardInterrupt:
            interrupted = True
            processes.interrupt()
        finally:
            left = processes.end()
            live.close()
        found = None if interrupted else failure(processes.board, left, processes.codes)
        fill(run, processes.board, left, began)
        if interrupted:
            run.status, run.reason = "stopped", "interrupted (Ctrl-C)"
        elif found is not None:
            run.status, run.reason = "failed", _reason(run, found)
        elif run.notes:
            run.reason = run.notes.pop()
        run.notes += [
            f"rank {rank} was {killed(number)} while Python shut down, after its script had ended"
            for rank, number in processes.fell_at_exit.items()
        ]
        if run_dir is not None:
            run.save(run_dir)
    if interrupted:
        stopped = KeyboardInterrupt()
        stopped.run = run  # type: ignore[attr-defined]
        raise stopped
    code = max((abs(code) for code in processes.codes if code), default=0)
    if found is not None and (run.steps or found.get("traceback")):
        raise _failed(run, found)
    return run, code


def _reason(run: Run, found: dict[str, Any]) -> str:
    """`rank 1 of 2 failed in step 17, backward: ValueError: ...`"""
    who = f"rank {found['rank']} of {run.ranks}" if run.ranks > 1 else "the script"
    step = found["step"]
    where = f" in step {step}, {found['phase']}" if step else " before its first step" if "traceback" in found else ""
    return f"{who} failed{where}: {found['line']}"


def _failed(run: Run, found: dict[str, Any]) -> RankFailed:
    problem = RankFailed(
        str(run.reason),
        rank=found["rank"],
        step=found["step"],
        phase=found["phase"],
        kind="raised" if found.get("traceback") else "died",
        traceback=found.get("traceback"),
    )
    problem.run = run
    return problem


def _tell(live: Live, board: Board) -> None:
    """What `manyhands watch` shows, out of the rows of the board."""
    row = board.row(0)
    if not row[STEPS]:
        return
    phases = list(row[TOTALS : TOTALS + len(PHASES)])
    samples = sum(max(0, board.row(rank)[SAMPLES]) for rank in range(board.ranks))
    loss = board.floats(0)[LOSS]
    live.hear(
        "progress",
        {
            "step": row[STEPS],
            "loss": loss if loss == loss else None,
            "samples_per_second": samples / (sum(phases) / 1e9) if samples and sum(phases) else None,
            "beats": [(rank, *board.where(rank)) for rank in range(board.ranks)],
            "phases": phases,
        },
    )
