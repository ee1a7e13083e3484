"""Claim: measuring costs at most 1 % of a step of 10 ms or more.

Two ways that must agree. By counting: marks a step times the cost of a mark. End to end: within one fit, blocks of steps
with and without the clock's marks in turn (in which order alternates), on every rank at once; a block counts by its
median step, a pair of neighbours gives one ratio, and the median of those is the cost: a mean of ratios would be pulled up
by noise. LeNet on 28x28 images, 64 samples a rank, one thread a rank.

What the caller samples meanwhile (use of cores, the file for `watch`) is timed by itself, as a share of one core.

    python benchmarks/measuring.py [--pairs 200] [--block 6] [--strategies single ddp pipeline]
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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from tables import median_interval, show

import manyhands as mh
from manyhands.record.clock import Clock
from manyhands.record.live import WRITE_SECONDS, Live
from manyhands.record.run import PHASES
from manyhands.record.usage import SAMPLE_SECONDS, Usage
from manyhands.strategies import make_strategy
from manyhands.training.run_fit import run_fit
from manyhands.training.settings import FitSettings
from manyhands.world.health.heartbeats import Board
from manyhands.world.rank import Rank

BATCH, WARM_UP = 64, 10
MARKS = ("_switch", "since")  # every mark ends in one of these
SWITCHED_OFF = ("enter", "_switch", "since", "count", "hide", "say")


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def make_task(ranks: int, steps: int) -> mh.Task:
    generator = torch.Generator().manual_seed(0)
    count = 16 * ranks * BATCH
    x, y = torch.randn(count, 1, 28, 28, generator=generator), torch.randint(10, (count,), generator=generator)
    sgd = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    return mh.Task(
        make_model, (x, y), nn.functional.cross_entropy, sgd, batch_size=ranks * BATCH, epochs=steps // 16 + 1,
        name="measuring",
    )  # fmt: skip


# -- in the ranks: fit calls these before the work of every step ------------------------------------------------------


def switch_off(rank: Rank) -> None:
    """Nothing is marked from here on; what the loop itself needs (the number of steps) goes on."""
    clock: Any = rank.clock

    def end_step() -> None:
        clock.steps += 1
        clock.step_ends.append(0)

    for name in SWITCHED_OFF:
        setattr(clock, name, lambda *_: 0)
    clock.begin_step, clock.end_step, clock.during = (lambda: None), end_step, lambda _: nullcontext()
    rank.arrive, rank.split_wait, rank.waited = (lambda: 0), (lambda *_: None), lambda *_: 0  # type: ignore[method-assign, assignment]


def switch_on(rank: Rank) -> None:
    for target, names in (
        (rank.clock, (*SWITCHED_OFF, "begin_step", "end_step", "during")),
        (rank, ("arrive", "split_wait", "waited")),
    ):
        for name in names:
            target.__dict__.pop(name, None)


def in_blocks(folder: str, block: int, last: int) -> Callable[[Rank, int], None]:
    """Marks on and off, block by block; at the end every rank writes the times of its steps."""
    times: list[int] = []

    def before_step(rank: Rank, step: int) -> None:
        times.append(time.monotonic_ns())
        number, within = divmod(step - 1 - WARM_UP, block)
        if within == 0 and number >= 0:
            (switch_off if _is_off(number) else switch_on)(rank)
        if step == last:
            switch_on(rank)
            Path(folder, f"{rank.index}.json").write_text(json.dumps(times))

    return before_step


def _is_off(block: int) -> bool:
    """on off, off on, on off, ...: neither side always comes first."""
    return (block % 2 == 1) != (block // 2 % 2 == 1)


def counting(folder: str, last: int) -> Callable[[Rank, int], None]:
    """The marks of the steps between the second and the last."""
    counted = [0]

    def before_step(rank: Rank, step: int) -> None:
        if step == 2:
            for name in MARKS:
                setattr(rank.clock, name, _counted(getattr(rank.clock, name), counted))
        if step == last:
            Path(folder, f"{rank.index}.json").write_text(json.dumps(counted[0] / (last - 2)))

    return before_step


def _counted(mark: Callable[..., Any], counted: list[int]) -> Callable[..., Any]:
    def call(*words: Any) -> Any:
        counted[0] += 1
        return mark(*words)

    return call


# -- in the caller ------------------------------------------------------------------------------------------------


def fit(strategy: str, ranks: int, steps: int, hook: Callable[[str, int], Callable[[Rank, int], None]]) -> list[Any]:
    """What the hook of every rank wrote."""
    with tempfile.TemporaryDirectory() as folder:
        task, fault = make_task(ranks, steps), hook(folder, steps)
        settings = FitSettings.of(threads=1, device="cpu", max_steps=steps, progress=False, fault=fault)
        run_fit(task, make_strategy(strategy, ranks), settings)
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]


def marks_per_step(strategy: str, ranks: int) -> float:
    """Of the rank that makes the most."""
    return float(max(fit(strategy, ranks, 12, counting)))


def mark_cost() -> float:
    """Microseconds of a mark that watchers see, the dearer of the two ways to make one."""
    clock, row = Clock(), Board(1).row(0)
    clock.beat_on(row)
    clock.start()

    def entering() -> None:
        for _ in range(1000):
            clock.enter("forward")

    def inside() -> None:
        for _ in range(500):
            with clock.during("wait"):
                pass

    return max(min(_seconds(way) for _ in range(50)) for way in (entering, inside)) * 1e6 / 1000


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def sampling_share() -> float:
    """How much of one core the caller takes for samples of the machine and the file that `watch` reads."""
    usage = Usage()
    usage.sample()
    with tempfile.TemporaryDirectory() as folder:
        live = Live(mh.Run("measuring", "single"), folder)
        live._progress = {"step": 10, "steps": 100, "phases": [1] * len(PHASES)}
        looks, writes = [], []
        for _ in range(20):
            usage._last = 0.0
            looks.append(_seconds(usage.sample))
            writes.append(_seconds(live._write))
    return statistics.median(looks) / SAMPLE_SECONDS + statistics.median(writes) / WRITE_SECONDS


def end_to_end(strategy: str, ranks: int, pairs: int, block: int) -> tuple[list[float], float]:
    """Ratios of steps with marks over steps without, one a pair and rank 0's view; and milliseconds of a step."""
    steps = WARM_UP + 2 * pairs * block + 1
    times = fit(strategy, ranks, steps, lambda folder, last: in_blocks(folder, block, last))[0]
    lengths = [after - before for before, after in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)]
    # a block's first step began under the other regime: it is left out
    medians = [statistics.median(lengths[at + 1 : at + block]) for at in range(0, 2 * pairs * block, block)]
    ratios = []
    for first in range(0, 2 * pairs, 2):
        one, other = medians[first], medians[first + 1]
        ratios.append(other / one if _is_off(first) else one / other)
    return ratios, statistics.median(medians) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--block", type=int, default=6)
    parser.add_argument("--strategies", nargs="+", default=["single", "ddp", "pipeline"])
    options = parser.parse_args()
    cost = mark_cost()
    rows = []
    for strategy in options.strategies:
        ranks = 1 if strategy == "single" else 2
        marks = marks_per_step(strategy, ranks)
        ratios, step_ms = end_to_end(strategy, ranks, options.pairs, options.block)
        low, high = median_interval(ratios)
        rows.append(
            {
                "strategy": strategy,
                "marks a step": marks,
                "us a mark": cost,
                "% of 10 ms": 100 * marks * cost / 10_000,
                "step ms": step_ms,
                "measured %": 100 * (statistics.median(ratios) - 1),
                "95 %": f"{100 * (low - 1):+.2f}..{100 * (high - 1):+.2f}",
            }
        )
    share = sampling_share()
    print(f"sampling in the caller: {100 * share:.2f} % of one core")
    facts = {"pairs": options.pairs, "steps a block": options.block, "sampling_share_of_a_core": share}
    show("What measuring costs: marks by counting, and with against without", rows, **facts)


if __name__ == "__main__":
    main()
