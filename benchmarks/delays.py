"""Claim: a delay of 5 ms, wherever it strikes, is found in its own phase within 5 %.

Every second step of a fit, on every process at once, is delayed: in the collate function, the forward pass, the backward
pass, the optimizer or the transport. A delay is spent awake: `time.sleep` sleeps longer than it is asked to, and after it
the rest of the phase is slower, on a core whose caches others have used. What really passed is measured inside the delay.
Attributed is what the phase of a delayed step takes beyond that of the steps between, against the time that really
passed; medians over the steps of a fit, of the rank that is furthest off. A step may have several delays: one per layer that
has it, and under a pipeline one per chunk or message.

    python benchmarks/delays.py [--pairs 60] [--strategies single ddp hogwild parameter_server pipeline]
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
    """The delay of this process: switched on and off from step to step, and its own stopwatch."""

    place = ""
    on = False
    passed = 0  # nanoseconds

    @classmethod
    def at(cls, place: str) -> None:
        if cls.on and cls.place == place:
            began = time.monotonic_ns()
            while time.monotonic_ns() - began < DELAY * 1e9:
                pass
            cls.passed += time.monotonic_ns() - began


# -- where a delay can strike ----------------------------------------------------------------------------------------


class Slowed(torch.autograd.Function):
    """The identity, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Delay.at("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Delay.at("backward")
        return gradient


class SlowedLayer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Slowed.apply(x)


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


def every_second(place: str, folder: str, last: int) -> Callable[[Rank, int], None]:
    """Delays on and off from step to step; at the end a process writes its phases at every step, and what delays took."""
    looks: list[list[int]] = []

    def before_step(rank: Rank, step: int) -> None:
        if step == 0:
            Delay.place = place
            if place == "communication":
                slow_transport()
            return
        looks.append([*phases_so_far(rank.clock), Delay.passed])
        Delay.on = step > WARM_UP and step % 2 == 0
        if step == last:
            Delay.on = False
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
    return nn.Sequential(
        SlowedLayer(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
        SlowedLayer(), nn.Linear(32, 4),
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


def measure(strategy: str, place: str, pairs: int) -> list[dict[str, Any]]:
    """Of every rank: what its phase took beyond that of a neighbour, and what really passed; medians in milliseconds."""
    steps = WARM_UP + 2 * pairs + 1
    ranks = 1 if strategy == "single" else 2
    with tempfile.TemporaryDirectory() as folder:
        settings = FitSettings.of(
            threads=1, device="cpu", max_steps=steps, progress=False, fault=every_second(place, folder, steps)
        )
        run_fit(make_task(steps), make_strategy(strategy, ranks), settings)
        looks = {int(path.stem): json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
    passed_of = {rank: [after[-1] - before[-1] for before, after in pairwise(rows)] for rank, rows in looks.items()}
    if place == "update" and strategy == "parameter_server":  # the server is delayed, the ranks stand still for it
        passed_of = dict.fromkeys(range(ranks), passed_of[ranks])
    return [judged(rank, looks[rank], passed_of[rank], PHASES.index(place)) for rank in range(ranks)]


def judged(rank: int, looks: list[list[int]], passed: list[int], phase: int) -> dict[str, Any]:
    took = [after[phase] - before[phase] for before, after in pairwise(looks)]
    delayed = [number for number, time in enumerate(passed) if time]
    others = [time for number, time in enumerate(took) if number >= WARM_UP and not passed[number]]
    if not delayed:
        return {"rank": rank, "passed": 0.0, "attributed": 0.0, "delayed": 0}
    missed = statistics.median(took[number] - passed[number] for number in delayed) - statistics.median(others)
    typical = statistics.median(passed[number] for number in delayed)
    return {
        "rank": rank,
        "passed": typical / 1e6,
        "attributed": (typical + missed) / 1e6,
        "delayed": len(delayed),
    }


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from tables import show

    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    options = parser.parse_args()
    rows, every = [], []
    for strategy in options.strategies:
        cells: dict[str, Any] = {"strategy": strategy}
        for place in PLACES:
            ranks = [row for row in measure(strategy, place, options.pairs) if row["delayed"]]
            every += [{"strategy": strategy, "place": place, **row} for row in ranks]
            off = [100 * (row["attributed"] / row["passed"] - 1) for row in ranks]
            cells[place] = f"{max(off, key=abs):+.1f} %" if off else "-"
        rows.append(cells)
    show("Delays of 5 ms: how far off their own phase was", rows, pairs=options.pairs, measured=every)


if __name__ == "__main__":
    main()
