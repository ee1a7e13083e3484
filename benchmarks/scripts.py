"""Claim: `manyhands run` costs a script under 2 % of its time, and its phases are those of a stopwatch within 5 %.

A plain loop over LeNet on 28x28 images, batch 64, one thread. Three tables:

    hooks    within one process, blocks of steps with and without the hooks in turn (in which order alternates); a block
             counts by its median step, a pair of neighbours gives one ratio, and the median of those is the cost
    whole    the script under `python` and under `manyhands run` in turn, each timing its own loop
    phases   the script with a stopwatch around its own lines, under `manyhands run`: what both say of the same steps

    python benchmarks/scripts.py [--pairs 200] [--block 10] [--rounds 5] [--steps 600] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from tables import median_interval, show

BATCH, WARM_UP = 64, 30
PHASES = ("load", "forward", "backward", "update")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def make_data() -> TensorDataset:
    return TensorDataset(torch.randn(50 * BATCH, 1, 28, 28), torch.randint(10, (50 * BATCH,)))


def batches(loader: DataLoader[Any], steps: int) -> Iterator[Any]:
    left = steps
    while left > 0:
        for batch in loader:
            yield batch
            left -= 1
            if not left:
                return


def train(steps: int, device: str, told: str) -> None:
    """The script: a loop that knows nothing of manyhands. With `told` it keeps its own times there."""
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    clock, times, began = time.perf_counter, [0.0] * 4, 0.0
    source = batches(DataLoader(make_data(), BATCH, shuffle=True), steps)
    for step in range(steps):
        if step == WARM_UP:
            _wait(device)
            began = clock()
        start = clock()
        batch = next(source)
        loaded = clock()
        x, y = (part.to(device) for part in batch)  # frees the last batch, which can take a millisecond
        optimizer.zero_grad()
        cleared = clock()
        loss = F.cross_entropy(model(x), y)
        known = clock()
        loss.backward()
        computed = clock()
        optimizer.step()
        updated = clock()
        for number, took in enumerate((loaded - start, known - cleared, computed - known, updated - computed)):
            times[number] += took
    _wait(device)
    seconds = clock() - began
    Path(told).write_text(
        json.dumps({"ms": 1e3 * seconds / (steps - WARM_UP), "phases": [1e3 * t / steps for t in times]})
    )


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def hooks_alone(pairs: int, block: int, device: str) -> list[float]:
    """Ratios of neighbouring blocks with and without the hooks."""
    from manyhands.bridges.scripts.board import Board
    from manyhands.bridges.scripts.hooks import Hooks
    from manyhands.bridges.scripts.steps import Steps

    board = Board(1)
    steps = Steps(board.row(0), board.floats(0))
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    source = batches(DataLoader(make_data(), BATCH, shuffle=True), (2 * pairs + 8) * block)

    def median_step() -> float:
        took, start = [], time.perf_counter()
        for _ in range(block):
            began = time.perf_counter()
            x, y = next(source)
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            took.append(time.perf_counter() - began)
        _wait(device)
        return statistics.median(took) if device == "cpu" else time.perf_counter() - start

    def measured_step() -> float:
        hooks = Hooks(steps)
        try:
            return median_step()
        finally:
            hooks._patches.undo()

    ratios = []
    for pair in range(pairs + 4):
        if pair % 2:
            measured, plain = measured_step(), median_step()
        else:
            plain, measured = median_step(), measured_step()
        if pair >= 4:
            ratios.append(measured / plain)
    return ratios


def whole(rounds: int, steps: int, device: str) -> tuple[list[float], list[dict[str, float]]]:
    """Ratios of whole runs in turn, and the phases of those under `manyhands run`, by hand and by it."""
    ratios, phases = [], []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        script = [str(Path(__file__).resolve()), "--train", str(steps), "--device", device, "--told", f"{folder}/told"]
        starts = {
            "plain": [sys.executable, *script],
            "run": [sys.executable, "-m", "manyhands", "run", "--quiet", "--run-dir", f"{folder}/r", *script],
        }
        for number in range(rounds):
            took = {}
            for side in sorted(starts, reverse=bool(number % 2)):
                subprocess.run(starts[side], check=True, env=environment, stdout=subprocess.DEVNULL)
                told = json.loads(Path(folder, "told").read_text())
                took[side] = told["ms"]
                if side == "run":
                    seen = json.loads(Path(folder, "r", "run.json").read_text())["phases_ms"]
                    phases.append({name: seen[name] / hand for name, hand in zip(PHASES, told["phases"], strict=True)})
            ratios.append(took["run"] / took["plain"])
    return ratios, phases


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--block", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train", type=int, default=0)
    parser.add_argument("--told", default="")
    chosen = parser.parse_args()
    if chosen.train:
        train(chosen.train, chosen.device, chosen.told)
        return
    torch.set_num_threads(1)
    alone = hooks_alone(chosen.pairs, chosen.block, chosen.device)
    ratios, phases = whole(chosen.rounds, chosen.steps, chosen.device)
    rows = [_cost("hooks alone", alone, "pairs"), _cost("whole runs", ratios, "rounds")]
    show(f"What `manyhands run` costs a loop on {chosen.device}", rows)
    if chosen.device == "cpu":  # around asynchronous calls a stopwatch measures only their launch
        by_hand = [
            {"phase": name, "manyhands / stopwatch": statistics.median(p[name] for p in phases)} for name in PHASES
        ]
        show("Phases of the same steps, by manyhands and by a stopwatch", by_hand)


def _cost(what: str, ratios: list[float], unit: str) -> dict[str, str]:
    low, high = median_interval(ratios)
    return {
        "what": what,
        "cost": f"{100 * (statistics.median(ratios) - 1):+.2f} %",
        "95 % interval": f"{100 * (low - 1):+.2f} to {100 * (high - 1):+.2f} %",
        "of": f"{len(ratios)} {unit}",
    }


if __name__ == "__main__":
    main()
