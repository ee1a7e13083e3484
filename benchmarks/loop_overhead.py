"""Claim: `fit(task, "single")` is at least 0.99 of the best hand-written loop, with measuring switched on, and ahead of
Lightning, Fabric and Accelerate.

LeNet on 28x28 images, batch 32, one thread, SGD with momentum, the loss of every step read. Every side runs in a fresh
process of the same launcher, in turn, round after round, and another side begins each round. Rates are steps per second
of one epoch, from before its first batch is asked for to the end of its last step. The peers are in the table when they
are installed, with their logs, checkpoints, bars and summaries off.

    python benchmarks/loop_overhead.py [--rounds 10] [--steps 400]
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from tables import interval, show

import manyhands as mh
from manyhands.world.launch import Place, launch

BATCH = 32


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def make_data(steps: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    count = steps * BATCH
    return torch.randn(count, 1, 28, 28, generator=generator), torch.randint(10, (count,), generator=generator)


make_optimizer = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
loss_of = nn.functional.cross_entropy


class ByIndex:
    """The stronger hand-written form: whole batches by index, no DataLoader."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in torch.randperm(len(self.x)).split(BATCH):
            yield self.x[indices], self.y[indices]


def by_loader(x: Tensor, y: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


def hand_written(steps: int, batches: Callable[[Tensor, Tensor], Iterable[Any]]) -> float:
    model = make_model().train()
    return timed_loop(model, make_optimizer(model.parameters()), batches(*make_data(steps)), Tensor.backward)


def with_accelerate(steps: int) -> float:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make_model().train()
    optimizer = make_optimizer(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, by_loader(*make_data(steps)))
    return timed_loop(model, optimizer, loader, accelerator.backward)


def with_fabric(steps: int) -> float:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = make_model().train()
    model, optimizer = fabric.setup(model, make_optimizer(model.parameters()))
    return timed_loop(model, optimizer, fabric.setup_dataloaders(by_loader(*make_data(steps))), fabric.backward)


def timed_loop(model: Any, optimizer: Any, batches: Iterable[Any], backward: Callable[[Tensor], Any]) -> float:
    """The loop that people write, with or without a library around its parts."""
    losses = []
    began = time.perf_counter()
    for x, y in batches:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return len(losses) / (time.perf_counter() - began)


def with_lightning(steps: int) -> float:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()
            self.losses: list[float] = []

        def on_train_epoch_start(self) -> None:  # before the first batch is asked for
            self.began = time.perf_counter()

        def training_step(self, batch: Any, number: int) -> Tensor:
            x, y = batch
            loss = loss_of(self.net(x), y)
            self.losses.append(loss.item())
            return loss

        def on_train_epoch_end(self) -> None:
            self.ended = time.perf_counter()

        def configure_optimizers(self) -> Any:
            return make_optimizer(self.parameters())

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, by_loader(*make_data(steps)))
    return len(module.losses) / (module.ended - module.began)


def with_manyhands(steps: int) -> float:
    task = mh.Task(make_model, make_data(steps), loss_of, make_optimizer, batch_size=BATCH, name="overhead")
    run = mh.fit(task, "single", threads=1, device="cpu", progress=False)
    assert run.seconds is not None
    return run.steps / run.seconds


BY_INDEX, BY_LOADER = "hand-written, rows by index", "hand-written, DataLoader"
SIDES: dict[str, Callable[[int], float]] = {
    BY_INDEX: functools.partial(hand_written, batches=ByIndex),
    BY_LOADER: functools.partial(hand_written, batches=by_loader),
    'fit(task, "single")': with_manyhands,
    "Fabric": with_fabric,
    "Accelerate": with_accelerate,
    "Lightning Trainer": with_lightning,
}
NEEDS = {"Fabric": "lightning", "Accelerate": "accelerate", "Lightning Trainer": "lightning"}


def installed() -> tuple[dict[str, Callable[[int], float]], dict[str, str]]:
    """The sides that can run here, and the versions of the peers among them."""
    sides, versions = dict(SIDES), {}
    for name, module in NEEDS.items():
        if importlib.util.find_spec(module):
            versions[module] = importlib.metadata.version(module)
        else:
            print(f"no row for {name}: {module} is not installed")
            del sides[name]
    return sides, versions


def in_a_rank(side: Callable[[int], float], steps: int) -> float:
    """A rank made like a plain process: memory as the system has it, nothing that makes peers look for other ranks."""

    def body(place: Place) -> float:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            os.environ.pop(name, None)
        return side(steps)

    return float(launch(body, 1, threads=1, keep_memory=False)[0])


def rows_of(rates: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Medians, and ratios round by round to both hand-written loops."""
    rows = []
    for name, values in rates.items():
        best, usual = (
            [value / base for value, base in zip(values, rates[other], strict=True)] for other in (BY_INDEX, BY_LOADER)
        )
        low, high = interval(best)
        rows.append(
            {
                "side": name,
                "steps/s": statistics.median(values),
                "slowest .. fastest": f"{min(values):.0f} .. {max(values):.0f}",
                "of by index": statistics.median(best),
                "95 % of the mean": f"{low:.3f} .. {high:.3f}",
                "of DataLoader": statistics.median(usual),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    sides, versions = installed()
    rates: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(options.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            side = sides[name]
            rate = side(options.steps) if side is with_manyhands else in_a_rank(side, options.steps)
            rates[name].append(rate)
    title = "LeNet, batch 32, one thread: steps per second"
    show(title, rows_of(rates), rounds=options.rounds, steps=options.steps, peers=versions, rates=rates)


if __name__ == "__main__":
    main()
