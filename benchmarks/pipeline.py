"""A pipeline of 2 stages and 4 chunks on 2 cores against one process, model_parallel and torch.distributed.pipelining.

The aims are 0.80 of single's step, 1.25 times model_parallel and 1.3 times torch.distributed.pipelining.

The same work on every side, in turns: an MLP of 8 x (Linear 1024, ReLU), 256 samples a step, cross entropy over 1024
classes, SGD, one thread a process. torch.distributed.pipelining (torch_sides.py) runs over gloo with the same 4
micro-batches, its stages cut in the middle. Of each side the median step after a warm-up counts; the ratios are those of each round.

"two by hand at once" is a control: two processes that know nothing of each other, each with the whole model. On two cores
of one's own they take as long as one. Where they take longer, the cores are shared with somebody, one who uses both has
less of them than twice one, and the pipeline's share of single's step is that much larger.

    python benchmarks/pipeline.py [--steps 12] [--rounds 5] [--chunks 4]
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable

import torch
from tables import show
from torch import nn
from torch_sides import WARM_UP, by_torch

import manyhands as mh

WIDTH, LAYERS, SAMPLES = 1024, 8, 256


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    count = 8 * SAMPLES
    return torch.randn(count, WIDTH, generator=generator), torch.randint(WIDTH, (count,), generator=generator)


def task() -> mh.Task:
    return mh.Task(
        model=model,
        train=data,
        loss=nn.functional.cross_entropy,
        optimizer=functools.partial(torch.optim.SGD, lr=0.01),
        batch_size=SAMPLES,
        epochs=100,
        name="mlp",
    )


def by_ours(strategy: str, ranks: int, steps: int) -> float:
    """Milliseconds of a step."""
    run = mh.fit(task(), strategy, ranks=ranks, threads=1, max_steps=WARM_UP + steps, device="cpu", progress=False)
    assert run.step_ms is not None
    return run.step_ms["median"]


def by_pipelining(schedule: str, chunks: int, steps: int) -> float:
    return by_torch(task(), "pipeline", 2, steps, cuts=[LAYERS], chunks=chunks, schedule=schedule).step_ms


def by_hand(steps: int, processes: int = 1) -> float:
    """One process as people write it, or several at once, each with a whole batch."""
    return by_torch(task().replace(batch_size=processes * SAMPLES), "apart", processes, steps).step_ms


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--chunks", type=int, default=4)
    chosen = options.parse_args()
    steps, chunks = chosen.steps, chosen.chunks
    sides: dict[str, Callable[[], float]] = {
        "single": lambda: by_ours("single", 1, steps),
        "pipeline": lambda: by_ours(f"pipeline:chunks={chunks}", 2, steps),
        "model_parallel": lambda: by_ours("model_parallel", 2, steps),
        "pipeline:schedule=gpipe": lambda: by_ours(f"pipeline:chunks={chunks},schedule=gpipe", 2, steps),
        "torch pipelining 1F1B": lambda: by_pipelining("1f1b", chunks, steps),
        "torch pipelining GPipe": lambda: by_pipelining("gpipe", chunks, steps),
        "single by hand": lambda: by_hand(steps),
        "two by hand at once": lambda: by_hand(steps, processes=2),
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(chosen.rounds):
        for name, measure in sides.items():
            found[name].append(measure())
    ours, single = found["pipeline"], found["single"]
    rows = [
        {
            "side": name,
            "step ms": statistics.median(values),
            "least": min(values),
            "most": max(values),
            "of single": statistics.median(a / b for a, b in zip(values, single, strict=True)),
            "pipeline is faster by": statistics.median(a / b for a, b in zip(values, ours, strict=True)),
        }
        for name, values in found.items()
    ]
    show(f"2 stages, {chunks} chunks, {SAMPLES} samples, median of {chosen.rounds} rounds", rows, rounds=found)
    print(
        "aim (see docs/benchmarks.md for what was reached): pipeline at most 0.80 of single, 1.25 x model_parallel, 1.3 x torch.distributed.pipelining"
    )


if __name__ == "__main__":
    main()
