"""Ranks of a script, started many times over: one process imports torch once and forks the ranks of every run.

    python -m manyhands.bridges.scripts.zygote

reads one order per line (JSON) and answers each with one line: the exit codes, and whether time ran out. Every rank has
a session of its own, which ends with the order, so nothing that a script has started is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import Any

from .rank import end_with_parent

LOOK_SECONDS = 0.02
GRACE_SECONDS = 3.0  # for the other ranks after one has failed


def main() -> None:
    end_with_parent()
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data

    with contextlib.suppress(ImportError):
        import torch._dynamo  # noqa: F401 (seconds; optimizers import it when they are made)
    from . import witness  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")  # the scripts' own output goes elsewhere
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        json.dump(_carry_out(json.loads(line)), answers)
        answers.write("\n")
        answers.flush()


def _carry_out(order: dict[str, Any]) -> dict[str, Any]:
    processes = [_fork(order, rank) for rank in range(order["ranks"])]
    codes: dict[int, int] = {}
    limit = time.monotonic() + order["seconds"]
    try:
        while len(codes) < len(processes) and time.monotonic() < limit:
            for rank, process in enumerate(processes):
                if rank not in codes:
                    ended, status = os.waitpid(process, os.WNOHANG)
                    if ended:
                        codes[rank] = os.waitstatus_to_exitcode(status)
                        if codes[rank]:
                            limit = min(limit, time.monotonic() + GRACE_SECONDS)
            time.sleep(LOOK_SECONDS)
    finally:
        for rank, process in enumerate(processes):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
            if rank not in codes:
                os.waitpid(process, 0)
    failed = any(codes.values())
    return {
        "codes": [codes.get(rank) for rank in range(len(processes))],
        "late": len(codes) < len(processes) and not failed,
    }


def _fork(order: dict[str, Any], rank: int) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setsid()
        end_with_parent()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        errors = os.open(os.path.join(order["folder"], f"errors{rank}"), os.O_WRONLY | os.O_CREAT)
        os.dup2(errors, 2)
        os.environ |= {**order["environment"], "RANK": str(rank), "LOCAL_RANK": str(rank)}
        _own_numbers(rank)
        from .witness import witness

        code = witness(order, rank)
    finally:
        os._exit(code)


def _own_numbers(rank: int) -> None:
    """Forked ranks would share what a fresh process takes from the system: as different on ranks, yet the same in each run."""
    import random

    import numpy
    import torch

    random.seed(f"manyhands {rank}")
    numpy.random.seed(random.getrandbits(32))
    torch.manual_seed(random.getrandbits(32))


if __name__ == "__main__":
    main()
