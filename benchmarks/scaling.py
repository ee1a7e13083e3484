"""ddp over shared memory and hogwild against plain torch DDP over gloo, on one host.

LeNet on 28x28 images, 32 samples a rank, one thread a rank. Sides, in turn, round after round: one process by hand and `fit`
with single (three times a round each, because a lone process runs at very different speeds on a shared machine); as many
processes by hand that share nothing, and as many ranks of `fit` that never talk, which is all that the cores give; those again if all
went at the pace of the slowest, as ranks that wait for each other do; plain torch
DistributedDataParallel over gloo by hand; `fit` with ddp and with hogwild. The hand-written sides are those of torch_sides.py.
Speeds are samples per second of the median step, medians over rounds. Perfect would be the single process times the ranks:
by hand, or ours.

    python benchmarks/scaling.py [--ranks 2 8 16] [--rounds 3] [--steps 200] [--samples 32]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from loop_overhead import loss_of, make_model, make_optimizer
from tables import show
from torch_sides import WARM_UP, by_torch

import manyhands as mh

NEVER_TALK = "local_sgd:period=1000000"


def data(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, 1, 28, 28, generator=generator), torch.randint(10, (samples,), generator=generator)


def task_of(batch: int, steps: int) -> mh.Task:
    epochs = -(-(WARM_UP + steps) // 50)
    data_of = partial(data, batch * 50)
    return mh.Task(make_model, data_of, loss_of, make_optimizer, batch_size=batch, epochs=epochs, name="scaling")


def by_hand(side: str, ranks: int, per_rank: int, steps: int) -> float:
    """Samples per second of a hand-written side."""
    batch = ranks * per_rank
    return 1000 * batch / by_torch(task_of(batch, steps), side, ranks, steps).step_ms


def ours(strategy: str, ranks: int, per_rank: int, steps: int) -> float:
    batch = ranks * per_rank
    return 1000 * batch / fitted(strategy, ranks, batch, steps).step_ms["median"]  # type: ignore[index]


def slowest(ranks: int, per_rank: int, steps: int) -> float:
    """What ranks that never talk would do if each step waited for the one that works longest: no lockstep can be faster."""
    run = fitted(NEVER_TALK, ranks, ranks * per_rank, steps)
    works = [sum(value for name, value in one["phases_ms"].items() if name != "wait") for one in run.per_rank]
    return 1000 * ranks * per_rank / max(works)


def fitted(strategy: str, ranks: int, batch: int, steps: int) -> mh.Run:
    return mh.fit(
        task_of(batch, steps), strategy, ranks=ranks, threads=1, device="cpu", progress=False, max_steps=WARM_UP + steps
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=32, help="a rank")
    options = parser.parse_args()
    sides: dict[tuple[str, int], Callable[[], float]] = {
        ("one process by hand", 1): lambda: by_hand("apart", 1, options.samples, options.steps),
        ("manyhands single", 1): lambda: ours("single", 1, options.samples, options.steps),
    }
    for ranks in options.ranks:
        sides["by hand, nothing shared", ranks] = lambda n=ranks: by_hand("apart", n, options.samples, options.steps)  # type: ignore[misc]
        sides["torch DDP over gloo by hand", ranks] = lambda n=ranks: by_hand("ddp", n, options.samples, options.steps)  # type: ignore[misc]
        sides["never talk, at the slowest rank's speed", ranks] = lambda n=ranks: slowest(
            n, options.samples, options.steps
        )  # type: ignore[misc]
        for strategy in (NEVER_TALK, "ddp", "ddp:transport=gloo", "hogwild"):
            sides[f"manyhands {strategy}", ranks] = lambda s=strategy, n=ranks: ours(
                s, n, options.samples, options.steps
            )  # type: ignore[misc]
    speeds: dict[tuple[str, int], list[float]] = {key: [] for key in sides}
    for _ in range(options.rounds):
        for key, side in sides.items():
            speeds[key] += [side() for _ in range(3 if key[1] == 1 else 1)]
    medians = {key: statistics.median(values) for key, values in speeds.items()}
    one, single = medians["one process by hand", 1], medians["manyhands single", 1]
    rows = [
        {
            "side": name,
            "ranks": ranks,
            "samples/s": medians[name, ranks],
            "slowest": min(speeds[name, ranks]),
            "fastest": max(speeds[name, ranks]),
            "of perfect": medians[name, ranks] / (one * ranks),
            "of our single": medians[name, ranks] / (single * ranks),
            "of nothing shared": medians[name, ranks]
            / medians.get(("by hand, nothing shared", ranks), medians[name, ranks]),
            "against gloo": medians[name, ranks]
            / medians.get(("torch DDP over gloo by hand", ranks), medians[name, ranks]),
        }
        for name, ranks in sides
    ]
    show(
        f"LeNet, {options.samples} samples a rank, one thread a rank: samples per second",
        rows,
        rounds=options.rounds,
        steps=options.steps,
    )


if __name__ == "__main__":
    main()
