"""Chaos: break a run on purpose and see what it costs.

    unbroken   ──────────────────────────────────────────> weights
    broken     ────────── fault ── noticed ── resumed ────> weights      equal? samples lost or doubled? anything left?

One unbroken run of a strategy serves all its faults. A fault strikes one rank at one step, for real: signals, exits,
a file size limit that makes the disk full, a flipped bit in a checkpoint, a killed caller. Kills also strike outside of
the steps: in start-up, while a checkpoint is being written, in evaluation and at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from ..errors import BadInput, RankFailed, Refused, did_you_mean
from ..record.run import Run
from ..record.run_folder import CHECKPOINTS
from ..strategies import TABLE, make_strategy
from ..strategies.contract import Strategy, processes
from ..task import Task
from ..training.run_fit import run_fit
from ..training.settings import FitSettings
from ..world.launch.by_value import pack, unpack
from .faults import FAULTS, Fault

STEPS, EVERY, STALL_SECONDS, LIMIT_SECONDS = 30, 5, 3.0, 120.0
SHARED = Path("/dev/shm")
_VANISH_SECONDS = 20.0  # processes may take this long to be gone: two seconds, and more on a busy machine
KEYS = (
    "strategy", "fault", "rank", "step", "outcome", "detected_seconds", "resumed_seconds", "steps_repeated",
    "samples_lost", "samples_doubled", "weights_equal", "left_behind",
)  # fmt: skip


def chaos(
    task: Task,
    strategy: str | Strategy = "ddp",
    fault: str = "kill",
    rank: int | None = None,
    step: int | None = None,
    *,
    ranks: int | None = None,
    max_steps: int = STEPS,
    stall_seconds: float = STALL_SECONDS,
    unbroken: Run | None = None,
    **keywords: Any,
) -> dict[str, Any]:
    """Run `task` with one fault and compare it with an unbroken run (made here unless given); returns one result."""
    chosen = make_strategy(strategy, ranks)
    rank, step = _aim(chosen, fault, rank, step, max_steps)
    task = task if fault.endswith("evaluation") else task.replace(test=None)
    settings = FitSettings.of(max_steps=max_steps, progress=False, **keywords)
    unbroken = unbroken or run_fit(task, chosen, settings)
    every = min(EVERY, max(1, step // 3))
    with tempfile.TemporaryDirectory(prefix="manyhands-chaos-") as folder:
        planned = Fault(fault, rank, step, str(Path(folder) / CHECKPOINTS), (step - 1) // every * every, os.getpid())
        settings = replace(
            settings,
            run_dir=folder,
            checkpoint_every=every,
            max_restarts=1,
            on_death="continue" if chosen.traits.survives else "end",
            stall_seconds=stall_seconds,
            time_limit=LIMIT_SECONDS,
            fault=planned,
        )
        result: dict[str, Any] = dict.fromkeys(KEYS)
        result.update(strategy=str(chosen), fault=fault, rank=rank, step=step)
        began = time.time()
        break_it = _kill_the_parent if fault.startswith("parent-killed") else _break
        run = break_it(task, chosen, settings, planned, result)
        result["left_behind"] = [*(result["left_behind"] or []), *left_behind(began, Path(folder))]
    if run is not None:
        result["samples_lost"] = max(0, (unbroken.samples or 0) - (run.samples or 0))
        result["samples_doubled"] = max(0, (run.samples or 0) - (unbroken.samples or 0))
        result["weights_equal"] = run.weights_sha256 == unbroken.weights_sha256
    return result


def _aim(strategy: Strategy, fault: str, rank: int | None, step: int | None, max_steps: int) -> tuple[int, int]:
    """Which rank and step the fault strikes; by default the second rank, two thirds into the run."""
    if fault not in FAULTS:
        raise BadInput(f'no fault named "{fault}"{did_you_mean(fault, FAULTS)}')
    if fault == "disk-full" or fault.startswith("parent-killed") or (fault.endswith("checkpoint") and "-in-" in fault):
        rank = 0  # the rank that writes; the caller is nobody's rank
    if rank is None:
        rank = min(1, processes(strategy) - 1)
    if not 0 <= rank < processes(strategy):
        raise BadInput(f"{strategy} has processes 0 to {processes(strategy) - 1} (found --rank {rank})")
    step = step if step is not None else max(1, max_steps * 3 // 5)
    if not 1 <= step <= max_steps:
        raise BadInput(f"the fault must strike in one of the {max_steps} steps (found --step {step})")
    return rank, step


def _break(task: Task, strategy: Strategy, settings: FitSettings, fault: Fault, result: dict[str, Any]) -> Run | None:
    try:
        run = run_fit(task, strategy, settings)
    except RankFailed as failure:
        result.update(outcome="ended", detected_seconds=failure.detected_seconds)
        return None
    struck = run.faults[0] if run.faults else {}
    result["outcome"] = "resumed" if run.restarts else "continued"
    result["detected_seconds"] = struck.get("detected_seconds")
    result["resumed_seconds"] = struck.get("resumed_seconds")
    result["steps_repeated"] = max(0, (struck["step"] or 0) - 1 - struck["resumed_step"]) if run.restarts else 0
    return run


def _kill_the_parent(
    task: Task, strategy: Strategy, settings: FitSettings, fault: Fault, result: dict[str, Any]
) -> Run | None:
    """Train in a program of its own, which a rank kills; then resume here what it left."""
    packed = pack((task, strategy, settings, fault))
    try:
        code = f"from manyhands.studies.chaos import be_killed; be_killed({packed})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        child = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[packed], env=environment, stdin=subprocess.DEVNULL
        )
    finally:
        os.close(packed)
    began = time.time()
    try:
        code_of_child = child.wait(LIMIT_SECONDS)
    finally:
        child.kill()
        child.wait()
    if code_of_child != -signal.SIGKILL:
        raise RankFailed(f"the program that was to be killed ended by itself (exit code {code_of_child})")
    killed = time.time()
    while survivors(began) and time.time() < killed + _VANISH_SECONDS:
        time.sleep(0.01)
    result["detected_seconds"] = time.time() - killed  # until every orphan had ended itself
    result["left_behind"] = survivors(began)
    run = run_fit(task, strategy, replace(settings, resume=True, fault=None))
    result["outcome"] = "resumed"
    result["resumed_seconds"] = run.startup_seconds
    if fault.moment is None:
        result["steps_repeated"] = max(0, fault.step - 1 - (run.resumed_from["step"] if run.resumed_from else 0))
    return run


def be_killed(packed: int) -> None:
    """The life of a caller that a rank kills."""
    task, strategy, settings, fault = unpack(packed)
    run_fit(task, strategy, replace(settings, fault=replace(fault, caller=os.getpid())))


# ---------------------------------------------------------------- what is left


def left_behind(since: float, folder: Path) -> list[str]:
    """Processes, shared memory and half-written files of runs begun after `since`; processes get a moment to end."""
    until = time.time() + _VANISH_SECONDS
    while survivors(since) and time.time() < until:
        time.sleep(0.05)
    files = [f"file {path.name}" for path in [*folder.glob(".running"), *(folder / CHECKPOINTS).glob(".*")]]
    memory = [f"shared memory {path.name}" for path in SHARED.glob("*manyhands*") if _made(path) >= since]
    return survivors(since) + files + memory


def _made(path: Path) -> float:
    try:
        return path.stat().st_ctime
    except FileNotFoundError:  # it has gone meanwhile
        return 0.0


def survivors(since: float) -> list[str]:
    """Keepers and ranks of this session begun after `since` that still run (the fork server itself may)."""
    found, session = [], os.getsid(0)
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if process.create_time() < since - 1.0 or os.getsid(process.pid) != session:
                continue
            if _forked(process) and not _is_server(process):
                found.append(f"process {process.pid} ({process.status()})")
    return found


def _is_server(process: psutil.Process) -> bool:
    """A fork server is the child of another program; keepers and ranks are children of one."""
    parent = process.parent()
    return parent is not None and parent.pid != 1 and not _forked(parent)


def _forked(process: psutil.Process) -> bool:
    return any("manyhands.world.launch.fork_server_process" in word for word in process.cmdline())


# ---------------------------------------------------------------- all of it


def chaos_matrix(
    task: Task,
    strategies: Sequence[str | Strategy] | None = None,
    faults: Sequence[str] = FAULTS,
    *,
    ranks: int | None = None,
    max_steps: int = STEPS,
    say: Callable[[str], None] = lambda _: None,
    on_result: Callable[[dict[str, Any]], None] = lambda _: None,
    **keywords: Any,
) -> list[dict[str, Any]]:
    """Every fault under every strategy; one that refuses the task is said and left out."""
    results = []
    for name in strategies if strategies is not None else list(TABLE):
        try:
            chosen = make_strategy(name, 1 if name == "single" else ranks)
            settings = FitSettings.of(max_steps=max_steps, progress=False, **keywords)
            unbroken = run_fit(task.replace(test=None), chosen, settings)
        except Refused as reason:
            say(f"{name} is left out: {reason}")
            continue
        for fault in faults:
            result = chaos(task, chosen, fault, max_steps=max_steps, unbroken=unbroken, **keywords)
            results.append(result)
            on_result(result)
    return results
