"""A small task for tests of checkpoints and failures, and tasks that break on purpose."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands import Task

# Ten times what it takes on an idle machine: ranks that wait for one that is gone do so for minutes.
DETECTED_SECONDS, RESUMED_SECONDS = 20.0, 50.0


def toy(samples: int = 120, epochs: int = 2, batch_size: int = 16, **changes: Any) -> Task:
    """Eight steps an epoch on a small net, with momentum and a schedule, so that there is state to lose."""
    generator = torch.Generator().manual_seed(7)
    input = torch.randn(samples, 12, generator=generator)
    target = (input[:, 0] > 0).long()
    fields: dict[str, Any] = {
        "model": net,
        "train": (input, target),
        "test": (input, target),
        "loss": F.cross_entropy,
        "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "schedule": decay,
        "batch_size": batch_size,
        "epochs": epochs,
        "name": "toy",
    }
    return Task(**{**fields, **changes})


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))


def decay(optimizer: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [updates // 2, updates * 3 // 4], gamma=0.5)


class BreakingLoss:
    """Does `what` in the loss of the n-th call on one rank, unless `unless` exists (so that a restart goes on), and not
    before `after` exists (a checkpoint, which is written while training goes on). The other ranks take their time: where
    they do not wait for each other, they would make the shares of the one that is to break, if it came late."""

    def __init__(
        self, what: Callable[[], Any], call: int, rank: int = 1, unless: str | None = None, after: Path | None = None
    ):
        self.what, self.call, self.rank, self.unless, self.after, self.calls = what, call, rank, unless, after, 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        here = os.environ.get("RANK") == str(self.rank)  # not in the caller, which tries the loss too
        if here and self.calls == self.call:
            if self.after is not None:
                wait_for(self.after)
            if self.unless is None:
                self.what()
            elif not os.path.exists(self.unless):
                open(self.unless, "w").close()
                self.what()
        elif "RANK" in os.environ and not here:
            time.sleep(0.01)
        return F.cross_entropy(output, target)


def checkpoint_of(run_dir: Path, step: int) -> Path:
    return run_dir.absolute() / "checkpoints" / f"step-{step:08d}"


def wait_for(file: Path) -> None:
    """For a rank: one that waits in vain goes on, and the test finds what did not come."""
    until = time.monotonic() + 100
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.005)


def sleep_forever() -> None:
    time.sleep(3600)


def signal_self(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)
