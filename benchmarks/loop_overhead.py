"""Claim: `fit(task, "single")` is at least 0.99 of the best hand-written loop, with measuring switched on, and ahead of
Lightning, Fabric and Accelerate.

LeNet on 28x28 images, batch 32, one thread, SGD with momentum, the loss of every step read. Every side is a plain
process of its own. They take turns of a few steps while the others sleep, so that all see the same moods of the machine:
a round is one turn of each, another side begins each round, the first round does not count. A turn is timed by the same
clock for every side, from the start of a step (its batch is there) to the start of the step `--turn` later; all it does
in between counts. Peers are in the table when they are installed; their logs, checkpoints, bars and summaries are off.

    python benchmarks/loop_overhead.py [--rounds 60] [--turn 20] [--no-peers]
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from tables import median_interval, show

import manyhands as mh
from manyhands.strategies import make_strategy
from manyhands.training.run_fit import run_fit
from manyhands.training.settings import FitSettings

BATCH = 32
PATIENCE = 120.0  # seconds until a side that does not answer ends the run
Data = tuple[Tensor, Tensor]


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


# -- the sides: each trains one epoch of the data and says when a step starts ------------------------------------------


class Turns:
    """A side's end of the line. Called at the start of every step; sleeps there while it is another side's turn."""

    def __init__(self, name: str, address: str, steps: int):
        self.name, self.address, self.steps = name, address, steps
        self._step, self._began = 0, 0.0
        self._line: Any = None  # made where the steps are: for fit that is another process

    def __call__(self) -> None:
        now = time.perf_counter()
        if self._step % self.steps == 0:
            if self._line is None:
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(self.address)
                self._line = connection.makefile("rw", buffering=1)
                self._line.write(f"{self.name}\n")
            else:
                self._line.write(f"{self.steps / (now - self._began)}\n")
            self._line.readline()
            self._began = time.perf_counter()
        self._step += 1


def by_index(x: Tensor, y: Tensor) -> Iterator[Data]:
    """The stronger hand-written form: whole batches by index, no DataLoader."""
    for indices in torch.randperm(len(x)).split(BATCH):
        yield x[indices], y[indices]


def by_loader(x: Tensor, y: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


def hand_written(data: Data, turns: Turns, batches: Callable[[Tensor, Tensor], Iterable[Any]]) -> None:
    model = make_model().train()
    train(model, make_optimizer(model.parameters()), batches(*data), Tensor.backward, turns)


def with_accelerate(data: Data, turns: Turns) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make_model().train()
    optimizer = make_optimizer(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, by_loader(*data))
    train(model, optimizer, loader, accelerator.backward, turns)


def with_fabric(data: Data, turns: Turns) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = make_model().train()
    model, optimizer = fabric.setup(model, make_optimizer(model.parameters()))
    train(model, optimizer, fabric.setup_dataloaders(by_loader(*data)), fabric.backward, turns)


def train(model: Any, optimizer: Any, batches: Iterable[Any], backward: Callable[[Tensor], Any], turns: Turns) -> None:
    """The loop that people write, with or without a library around its parts."""
    losses = []
    for x, y in batches:
        turns()
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        losses.append(loss.item())


def with_lightning(data: Data, turns: Turns) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()
            self.losses: list[float] = []

        def training_step(self, batch: Any, number: int) -> Tensor:
            turns()
            x, y = batch
            loss = loss_of(self.net(x), y)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return make_optimizer(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), by_loader(*data))


def with_manyhands(data: Data, turns: Turns) -> None:
    task = mh.Task(make_model, data, loss_of, make_optimizer, batch_size=BATCH, name="overhead")
    settings = FitSettings(threads=1, device="cpu", progress=False, fault=lambda rank, step: turns())
    run = run_fit(task, make_strategy("single"), settings)
    assert len(run.losses) == run.steps


BY_INDEX, BY_LOADER = "hand-written, rows by index", "hand-written, DataLoader"
SIDES: dict[str, Callable[[Data, Turns], None]] = {
    BY_INDEX: functools.partial(hand_written, batches=by_index),
    BY_LOADER: functools.partial(hand_written, batches=by_loader),
    'fit(task, "single")': with_manyhands,
    "Fabric": with_fabric,
    "Accelerate": with_accelerate,
    "Lightning Trainer": with_lightning,
}
NEEDS = {"Fabric": "lightning", "Accelerate": "accelerate", "Lightning Trainer": "lightning"}


# -- the one who calls the turns ---------------------------------------------------------------------------------------


def installed() -> tuple[list[str], dict[str, str]]:
    """The sides that can run here, and the versions of the peers among them."""
    names, versions = list(SIDES), {}
    for name, module in NEEDS.items():
        if importlib.util.find_spec(module):
            versions[module] = importlib.metadata.version(module)
        else:
            print(f"no row for {name}: {module} is not installed")
            names.remove(name)
    return names, versions


def measure(names: list[str], rounds: int, turn: int) -> dict[str, list[float]]:
    """Steps per second of every side in every round."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{folder}/door")
        door.listen(len(names))
        door.settimeout(PATIENCE)
        asked = [sys.executable, __file__, "--rounds", str(rounds), "--turn", str(turn), "--address", f"{folder}/door"]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        sides = [subprocess.Popen([*asked, "--side", name], env=one_thread) for name in names]
        try:
            rates = call_turns(dict(met(door) for _ in names), rounds)
            assert not any(side.wait(PATIENCE) for side in sides)
        finally:
            for side in sides:
                side.terminate()  # where one failed
                side.wait()
        return rates


def met(door: socket.socket) -> tuple[str, Any]:
    connection, _ = door.accept()
    connection.settimeout(PATIENCE)
    line = connection.makefile("rw", buffering=1)
    return line.readline().strip(), line


def call_turns(lines: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in SIDES if name in lines}
    names = list(rates)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            lines[name].write("go\n")
            rates[name].append(float(lines[name].readline()))
    for line in lines.values():
        line.close()  # they end by themselves
    return {name: values[1:] for name, values in rates.items()}


def rows_of(rates: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Medians over the rounds, of the rates and of the ratios to both hand-written loops."""
    rows = []
    for name, values in rates.items():
        row = {
            "side": name,
            "steps/s": statistics.median(values),
            "slowest .. fastest": f"{min(values):.0f} .. {max(values):.0f}",
        }
        for heading, other in (("of by index", BY_INDEX), ("of DataLoader", BY_LOADER)):
            ratios = [value / base for value, base in zip(values, rates[other], strict=True)]
            low, high = median_interval(ratios)
            row[heading] = statistics.median(ratios)
            row[f"95 % {heading}"] = f"{low:.3f} .. {high:.3f}"
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--turn", type=int, default=20, help="steps of a turn")
    parser.add_argument(
        "--no-peers", action="store_true", help="only fit and the hand-written loops: more rounds a minute"
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)  # this process is that side
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        torch.set_num_threads(1)
        steps = (options.rounds + 1) * options.turn + 1  # the last one only ends the last turn
        SIDES[options.side](make_data(steps), Turns(options.side, options.address, options.turn))
        return
    names, versions = ([name for name in SIDES if name not in NEEDS], {}) if options.no_peers else installed()
    rates = measure(names, options.rounds, options.turn)
    title = "LeNet, batch 32, one thread: steps per second"
    show(title, rows_of(rates), rounds=options.rounds, steps_a_turn=options.turn, peers=versions)


if __name__ == "__main__":
    main()
