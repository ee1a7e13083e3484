"""Claim: a delay of 5 ms, wherever it strikes, is found in its own phase within 5 %.

Every second step of a fit is delayed, on every process at once and in each place in turn: the collate function, the
forward pass, the backward pass, the optimizer, the transport. A delay is spent awake, for `time.sleep` sleeps longer than
it is asked to; what really passed is measured inside it. Work after it is slower, because others have used the caches
meanwhile (60 us become 150 to 250), so delays strike near the end of a phase where they can.

Attributed is what the phase of a delayed step takes beyond that of the steps between, against the time that really
passed; medians over the steps of a fit, of the rank that is furthest off. Under a pipeline a step has several delays,
one per chunk or message, and those of a layer strike one rank alone.

    python benchmarks/delays.py [--pairs 40] [--strategies single ddp hogwild parameter_server pipeline]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

import manyhands as mh
from manyhands.record.clock import Clock
from manyhands.record.run import PHASES
from manyhands.strategies import make_strategy
from manyhands.strategies.pieces.gradient_slots import GradientSlot
from manyhands.strategies.pieces.sends import Sends
from manyhands.strategies.pieces.shared_weights import SharedModel
from manyhands.strategies.pieces.stage_links import HEADER
from manyhands.training.run_fit import run_fit
from manyhands.training.settings import FitSettings
from manyhands.world.rank import Rank

STRATEGIES = ("single", "ddp", "hogwild", "parameter_server", "pipeline")
PLACES = ("load", "forward", "backward", "update", "communication")
DELAY, WARM_UP = 0.005, 4


class Delay:
    """The delay of this process, and its own stopwatch."""

    place = ""  # where it strikes in this step; nowhere
    passed = 0  # nanoseconds

    @classmethod
    def at(cls, place: str) -> None:
        if cls.place == place:
            began = time.monotonic_ns()
            while time.monotonic_ns() - began < DELAY * 1e9:
                pass
            cls.passed += time.monotonic_ns() - began


# -- where a delay can strike ----------------------------------------------------------------------------------------


class Slowed(torch.autograd.Function):
    """The identity, slow in one of its two passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: bool) -> Tensor:
        ctx.forward = forward
        if forward:
            Delay.at("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if not ctx.forward:
            Delay.at("backward")
        return gradient, None


class SlowedLayer(nn.Module):
    def __init__(self, forward: bool = False):
        super().__init__()
        self.slow_forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return Slowed.apply(x, self.slow_forward)


class SlowedSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        Delay.at("update")
        return super().step(closure)


def slowed_collate(samples: list[Any]) -> Any:
    Delay.at("load")
    return default_collate(samples)


def slow_down(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*words: Any, **named: Any) -> Any:
        Delay.at("communication")
        return function(*words, **named)

    return call


def slow_transport() -> None:
    """What each strategy hands over with: collectives, weights read from memory, gradients put there, messages."""
    torch.distributed.all_reduce = slow_down(torch.distributed.all_reduce)
    SharedModel.read = slow_down(SharedModel.read)  # type: ignore[method-assign]
    GradientSlot.put = slow_down(GradientSlot.put)  # type: ignore[method-assign]
    send, slowed = Sends.send, slow_down(Sends.send)

    def send_message(sends: Sends, tensor: Tensor, to: int, tag: int = 0) -> None:
        """A message begins with its header: what is behind it comes at once."""
        (slowed if tensor.dtype == torch.int64 and len(tensor) == HEADER else send)(sends, tensor, to, tag)

    Sends.send = send_message  # type: ignore[method-assign]


# -- in the ranks: fit calls this before the work of every step ---------------------------------------------------------


def every_second(folder: str, last: int) -> Callable[[Rank, int], None]:
    """Delay every second step, in each place in turn.

    At the end a process writes what it saw before every step: nanoseconds in each phase and in delays so far, and where the
    next delay strikes.
    """
    looks: list[tuple[list[int], int, str]] = []

    def before_step(rank: Rank, step: int) -> None:
        if step == 0:
            slow_transport()
            return
        delayed = WARM_UP < step < last and step % 2 == 0
        Delay.place = PLACES[step // 2 % len(PLACES)] if delayed else ""
        looks.append((phases_so_far(rank.clock), Delay.passed, Delay.place))
        if step == last:
            Path(folder, f"{rank.index}.json").write_text(json.dumps(looks))

    return before_step


def phases_so_far(clock: Clock) -> list[int]:
    """Nanoseconds in each phase, the one that is going on included."""
    found = list(clock.phases)
    found[clock._phase] += time.monotonic_ns() - clock._since
    return found


# -- in the caller -------------------------------------------------------------------------------------------------


class Samples(Dataset):
    def __init__(self, count: int):
        generator = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(count, 16, generator=generator), torch.randint(4, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def make_model() -> nn.Module:
    """A chain that is slow at the end of its forward pass, and at the end of its backward pass."""
    return nn.Sequential(
        nn.Linear(16, 32), SlowedLayer(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
        nn.Linear(32, 4), SlowedLayer(forward=True),
    )  # fmt: skip


def make_task(steps: int) -> mh.Task:
    return mh.Task(
        make_model,
        Samples(8 * steps),
        nn.functional.cross_entropy,
        functools.partial(SlowedSGD, lr=0.01),
        batch_size=8,
        collate=slowed_collate,
        name="delays",
    )


@dataclass(frozen=True)
class Spent:
    """One step of one rank: where it was delayed, for how long, and how long its phases took; nanoseconds."""

    rank: int
    place: str
    passed: int
    phases: list[int]


def measure(strategy: str, pairs: int) -> list[Spent]:
    """The steps of a fit that is delayed in every second step, so many times in each place."""
    steps = WARM_UP + 2 * len(PLACES) * pairs + 1
    ranks = 1 if strategy == "single" else 2
    with tempfile.TemporaryDirectory() as folder:
        settings = FitSettings.of(
            threads=1, device="cpu", max_steps=steps, progress=False, fault=every_second(folder, steps)
        )
        run_fit(make_task(steps), make_strategy(strategy, ranks), settings)
        looks = {int(path.stem): json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
    found = {rank: [_spent(rank, *pair) for pair in pairwise(looks[rank][WARM_UP:])] for rank in looks}
    for server in range(ranks, len(found)):  # it makes the updates, and the ranks stand still for them
        for rank in range(ranks):
            found[rank] = [
                replace(mine, passed=its.passed) if mine.place == "update" else mine
                for mine, its in zip(found[rank], found[server], strict=True)
            ]
    return [spent for rank in range(ranks) for spent in found[rank]]


def _spent(rank: int, before: tuple[list[int], int, str], after: tuple[list[int], int, str]) -> Spent:
    phases = [end - start for start, end in zip(before[0], after[0], strict=True)]
    return Spent(rank, before[2], after[1] - before[1], phases)


def judged(rank: int, place: str, steps: list[Spent]) -> dict[str, Any] | None:
    """What passed in the delays of a place, and what its phase took beyond that of undelayed steps; medians."""
    phase, mine = PHASES.index(place), [spent for spent in steps if spent.rank == rank]
    delayed = [spent for spent in mine if spent.place == place and spent.passed]
    if not delayed:
        return None
    others = statistics.median(spent.phases[phase] for spent in mine if not spent.place)
    missed = statistics.median(spent.phases[phase] - spent.passed for spent in delayed) - others
    passed = statistics.median(spent.passed for spent in delayed)
    return {"place": place, "rank": rank, "passed_ms": passed / 1e6, "attributed_ms": (passed + missed) / 1e6}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from tables import show

    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    options = parser.parse_args()
    rows, every = [], []
    for strategy in options.strategies:
        cells: dict[str, Any] = {"strategy": strategy}
        steps = measure(strategy, options.pairs)
        for place in PLACES:
            ranks = [row for rank in range(2) if (row := judged(rank, place, steps))]
            every += [{"strategy": strategy, **row} for row in ranks]
            off = [100 * (row["attributed_ms"] / row["passed_ms"] - 1) for row in ranks]
            cells[place] = f"{max(off, key=abs):+.1f} %" if off else "-"
        rows.append(cells)
    show("Delays of 5 ms: how far off their own phase was", rows, pairs=options.pairs, measured=every)


if __name__ == "__main__":
    main()
