"""Models that do not fit in cache, against torch's own implementations: every strategy on every model, in one table.

    MLP           8 x (Linear 1024, ReLU), 8.4 million parameters, 256 samples per step, SGD
    MobileNetV2   of the task cifar10 at half its width, 32 random images of 32 x 32 per step, the task's SGD
    GPT           4 blocks of 256, 3.2 million parameters, 16 sequences of 128 per step, AdamW

The same work on both sides: model, batches and their order, optimizer, one thread per rank, chunks, units. torch's sides
are the loops of torch_sides.py. Sides take turns within a round; ratios are those of each round. "apart" are ranks that
never talk (ours: local_sgd with a period that never ends), which no implementation of the others can beat by computing
the same way. The losses of both sides are compared, so that both are known to have done the same.

    python benchmarks/wider_models.py [--ranks 2] [--rounds 5] [--steps 15] [--models mlp gpt] [--strategies ddp fsdp] [--times 8]

`--times` makes batches that many times as large: 8 with 16 ranks gives each the samples it has with 2.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from tables import show
from torch_sides import SIDES, WARM_UP, Measured, by_torch, cuts_of

import manyhands as mh
from manyhands.model.fsdp_units import find_units
from manyhands.tasks import cifar10
from manyhands.tasks.models import gpt, mobilenetv2

SYMBOLS, LENGTH = 65, 128
STRATEGIES = {"apart": "local_sgd:period=1000000"}  # ours; all others have the name of torch's side
CHUNKS = 4


def mlp() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())))


def rows(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 1024), torch.randint(1024, (count,))


def images(count: int) -> tuple[Tensor, Tensor]:
    return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (count,))


def sequences(count: int) -> tuple[Tensor, Tensor]:
    symbols = torch.randint(SYMBOLS, (count, LENGTH + 1))
    return symbols[:, :-1], symbols[:, 1:]


def loss_of_symbols(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def tasks(times: int) -> dict[str, mh.Task]:
    common: dict[str, Any] = {"epochs": 100}
    sgd, adamw = partial(torch.optim.SGD, lr=0.01), partial(torch.optim.AdamW, lr=3e-4)
    return {
        "mlp": mh.Task(
            mlp, partial(rows, 2048 * times), F.cross_entropy, sgd, batch_size=256 * times, name="mlp", **common
        ),
        "mobilenet": mh.Task(
            partial(mobilenetv2, width=0.5),
            partial(images, 512 * times),
            F.cross_entropy,
            partial(cifar10.sgd, rate=0.01),
            batch_size=32 * times,
            name="mobilenet",
            **common,
        ),
        "gpt": mh.Task(
            partial(gpt, SYMBOLS, LENGTH, width=256),
            partial(sequences, 256 * times),
            loss_of_symbols,
            adamw,
            batch_size=16 * times,
            name="gpt",
            **common,
        ),
    }


def options_of(task: mh.Task, strategy: str, ranks: int) -> dict[str, Any]:
    """What the hand-written side must be told so that it does what ours finds out by itself."""
    if strategy == "pipeline":
        return {"cuts": cuts_of(task, ranks), "chunks": CHUNKS}
    if strategy == "fsdp":
        input = task.train()[0][:2]  # type: ignore[operator, index]
        return {"units": find_units(task.model(), int(mh.FSDP().unit_mb * 2**20), lambda model: model(input))}
    return {}


def by_ours(task: mh.Task, strategy: str, ranks: int, steps: int) -> Measured:
    run = mh.fit(task, strategy, ranks=ranks, threads=1, max_steps=WARM_UP + steps, device="cpu", progress=False)
    assert run.step_ms is not None
    return Measured(run.step_ms["median"], float(run.losses[-1] or 0.0))


def main() -> None:
    models = tasks(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--models", nargs="+", choices=models, default=list(models))
    parser.add_argument("--strategies", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--times", type=int, default=1)
    chosen = parser.parse_args()
    models = tasks(chosen.times)
    cells = [(model, strategy) for model in chosen.models for strategy in chosen.strategies]
    options = {(model, strategy): options_of(models[model], strategy, chosen.ranks) for model, strategy in cells}
    found: dict[tuple[str, str], list[tuple[Measured, Measured]]] = {cell: [] for cell in cells}
    for _ in range(chosen.rounds):
        for cell in cells:
            task, (_, strategy) = models[cell[0]], cell
            ours = by_ours(task, STRATEGIES.get(strategy, strategy), chosen.ranks, chosen.steps)
            theirs = by_torch(task, strategy, chosen.ranks, chosen.steps, **options[cell])
            found[cell].append((ours, theirs))
            print(*cell, f"{ours.step_ms:.1f} against {theirs.step_ms:.1f} ms", file=sys.stderr, flush=True)
    show(
        f"{chosen.ranks} ranks of one thread, batches x {chosen.times}, median of {chosen.rounds} rounds of {chosen.steps} steps",
        [row(*cell, pairs) for cell, pairs in found.items()],
        options={" ".join(cell): told for cell, told in options.items() if told},
    )


def row(model: str, strategy: str, pairs: list[tuple[Measured, Measured]]) -> dict[str, Any]:
    ratios = [theirs.step_ms / ours.step_ms for ours, theirs in pairs]
    return {
        "model": model,
        "strategy": strategy,
        "ours ms": statistics.median(ours.step_ms for ours, _ in pairs),
        "torch ms": statistics.median(theirs.step_ms for _, theirs in pairs),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "losses differ by": max(abs(ours.loss / theirs.loss - 1) for ours, theirs in pairs),
    }


if __name__ == "__main__":
    main()
