"""Learning-rate schedules as values: `Task.schedule` gets (optimizer, total updates) and is stepped once an update.

cosine(warmup=0.05)        linear(warmup=0.05)         constant(warmup=0.05)
|  .--.                    |  /\\                       |  .----------
| /    `.                  | /  `-.                    | /
|/       `-._              |/      `-._                |/
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from .errors import BadInput

__all__ = ["Schedule", "constant", "cosine", "linear", "scaled_rate"]


def cosine(warmup: float = 0.05) -> Schedule:
    """Linear warm-up over the first `warmup` of the updates, then half a cosine down to zero."""
    return Schedule("cosine", warmup)


def linear(warmup: float = 0.0) -> Schedule:
    """Linear warm-up over the first `warmup` of the updates, then a straight line down to zero."""
    return Schedule("linear", warmup)


def constant(warmup: float = 0.0) -> Schedule:
    """Linear warm-up over the first `warmup` of the updates, then the optimizer's own rate."""
    return Schedule("constant", warmup)


def scaled_rate(rate: float, batch: int, reference: int, rule: Literal["linear", "sqrt"] = "linear") -> float:
    """The rate for batches of `batch`, where `rate` is right for batches of `reference`.

    A batch k times larger makes k times fewer updates an epoch. The linear rule makes each k times longer, so an
    epoch moves the weights as far (SGD); the square-root rule keeps the noise of an update the same (Adam and kin).
    """
    if rule not in _RULES:
        raise BadInput(f'no rule named "{rule}" to scale a rate with the batch; there are: {", ".join(_RULES)}')
    if batch < 1 or reference < 1:
        raise BadInput(f"batch sizes must be at least 1 (found batch={batch}, reference={reference})")
    return rate * _RULES[rule](batch / reference)


_RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt}

_SHAPES: dict[str, Callable[[float], float]] = {  # share of the way done after the warm-up -> share of the rate
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "constant": lambda done: 1.0,
}


@dataclass(frozen=True)
class Schedule:
    """A shape and a warm-up: comparable, printable, and the same after pickling."""

    shape: str
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in _SHAPES:
            raise BadInput(f'no schedule named "{self.shape}"; there are: {", ".join(_SHAPES)}')
        if not 0 <= self.warmup < 1:
            raise BadInput(f"warmup is a share of all updates: at least 0 and below 1 (found {self.warmup})")

    def __call__(self, optimizer: Optimizer, total_updates: int) -> LambdaLR:
        return LambdaLR(optimizer, lambda update: self.factor(update, total_updates))

    def factor(self, update: int, total_updates: int) -> float:
        """What the rate of update 0, 1, ... total_updates - 1 is multiplied with; never zero before the end."""
        warm = round(self.warmup * total_updates)
        if update < warm:
            return (update + 1) / (warm + 1)
        done = (update - warm) / max(1, total_updates - warm)
        return _SHAPES[self.shape](min(1.0, done))
