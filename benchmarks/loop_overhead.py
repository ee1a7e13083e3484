"""Claim: `fit(task, "single")` costs no more than a hand-written loop, with measuring switched on.

LeNet on 28x28 images, batch 32, one thread, SGD with momentum. Every side runs in a fresh process of the same
launcher, in turn, round after round; rates are steps per second of the training steps alone. Lightning, Fabric
and Accelerate are in the table when they are installed.

    python benchmarks/loop_overhead.py [--rounds 10] [--steps 400]
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
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


def by_index(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    x, y = make_data(steps)
    for indices in torch.randperm(len(x)).split(BATCH):
        yield x[indices], y[indices]


def by_loader(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from DataLoader(TensorDataset(*make_data(steps)), batch_size=BATCH, shuffle=True)


def plain_loop(steps: int, batches: Callable[[int], Iterator[Any]]) -> float:
    """What people write by hand: it reads the loss, as anyone who prints it does."""
    torch.manual_seed(0)
    model = make_model().train()
    optimizer = make_optimizer(model.parameters())
    feed = iter(batches(steps))
    first = next(feed)
    losses = []
    began = time.perf_counter()
    for x, y in _from(first, feed):
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return len(losses) / (time.perf_counter() - began)


def _from(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def with_accelerate(steps: int) -> float:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    loader = DataLoader(TensorDataset(*make_data(steps)), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    began = time.perf_counter()
    for x, y in loader:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return steps / (time.perf_counter() - began)


def with_fabric(steps: int) -> float:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = make_model()
    model, optimizer = fabric.setup(model, make_optimizer(model.parameters()))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(*make_data(steps)), batch_size=BATCH, shuffle=True))
    losses = []
    began = time.perf_counter()
    for x, y in loader:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return steps / (time.perf_counter() - began)


def with_lightning(steps: int) -> float:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def training_step(self, batch: Any, number: int) -> Tensor:
            x, y = batch
            if number == 0:
                self.began = time.perf_counter()
            return loss_of(self.net(x), y)

        def on_train_epoch_end(self) -> None:
            self.ended = time.perf_counter()

        def configure_optimizers(self) -> Any:
            return make_optimizer(self.parameters())

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(*make_data(steps)), batch_size=BATCH, shuffle=True))
    return steps / (module.ended - module.began)


def with_manyhands(steps: int) -> float:
    task = mh.Task(make_model, make_data(steps), loss_of, make_optimizer, batch_size=BATCH, name="overhead")
    run = mh.fit(task, "single", threads=1, device="cpu", progress=False)
    assert run.steps == steps
    assert run.seconds is not None
    return run.steps / run.seconds


def in_a_rank(side: Callable[[int], float], steps: int) -> float:
    def body(place: Place) -> float:
        return side(steps)

    return float(launch(body, 1, threads=1, keep_memory=False)[0])  # as in a plain process


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    sides: dict[str, Callable[[int], float]] = {
        "hand-written, rows by index": lambda steps: in_a_rank(lambda n: plain_loop(n, by_index), steps),
        "hand-written, DataLoader": lambda steps: in_a_rank(lambda n: plain_loop(n, by_loader), steps),
        'manyhands fit(task, "single")': with_manyhands,
    }
    peers = {"accelerate": ("Accelerate", with_accelerate), "lightning": ("Fabric", with_fabric)}
    for module, (name, side) in peers.items():
        if importlib.util.find_spec(module):
            sides[name] = functools.partial(in_a_rank, side)
    if importlib.util.find_spec("lightning"):
        sides["Lightning Trainer"] = functools.partial(in_a_rank, with_lightning)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in sides.items():
            rates[name].append(side(options.steps))
    reference = next(iter(sides))
    rows = []
    for name, values in rates.items():
        ratios = [value / base for value, base in zip(values, rates[reference], strict=True)]
        low, high = interval(ratios)
        rows.append(
            {
                "side": name,
                "steps/s (mean)": statistics.fmean(values),
                "median": statistics.median(values),
                "ratio of means": statistics.fmean(values) / statistics.fmean(rates[reference]),
                "95 % of ratio": f"{low:.3f}..{high:.3f}",
            }
        )
    show("LeNet, batch 32, one thread: steps per second", rows, rounds=options.rounds, steps=options.steps)


if __name__ == "__main__":
    main()
