"""Claim: a checkpoint every 30 s slows the training of a 25-million-parameter model by at most 2 %.

An MLP of 25.2 million parameters under SGD with momentum (200 MB a checkpoint), trained for a fixed number of steps
with and without checkpoints, in turn, round after round. Wall time is compared: steps, and the time training stands
still for snapshots. Checkpoints come every `--every` seconds; where that is less than 30, what one checkpoint costs is
also given as a share of 30 s.

    python benchmarks/checkpoint.py [--rounds 5] [--every 10] [--seconds 30] [--ranks 1]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
from pathlib import Path

import torch
from torch import nn

import manyhands as mh
from manyhands.record.cores import available_cores

WIDTH, LAYERS, SAMPLES, BATCH = 2048, 6, 4096, 64


def make_model() -> nn.Module:
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def make_task(epochs: int) -> mh.Task:
    generator = torch.Generator().manual_seed(0)
    return mh.Task(
        model=make_model,
        train=(torch.randn(SAMPLES, WIDTH, generator=generator), torch.randint(10, (SAMPLES,), generator=generator)),
        loss=nn.functional.cross_entropy,
        optimizer=functools.partial(torch.optim.SGD, lr=0.001, momentum=0.9),
        batch_size=BATCH,
        epochs=epochs,
        name="mlp-25m",
    )


def wall(run: mh.Run) -> float:
    """Seconds in steps, standing still for checkpoints and waiting for the last one to be written."""
    assert run.seconds is not None
    return run.seconds + (run.checkpoint_seconds or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--json", default=None)
    given = parser.parse_args()
    strategy, ranks = ("single", 1) if given.ranks == 1 else ("ddp", given.ranks)
    fit = functools.partial(mh.fit, strategy=strategy, ranks=ranks, device=given.device, progress=False)
    warm = fit(make_task(1), max_steps=12)
    assert warm.step_ms is not None
    steps = max(10, int(given.seconds * 1000 / warm.step_ms["median"]))
    epochs = -(-steps * BATCH // SAMPLES)
    parameters = sum(parameter.numel() for parameter in make_model().parameters())
    print(
        f"{parameters / 1e6:.1f} million parameters, {available_cores()} cores, torch {torch.__version__}, {steps} steps"
    )
    rows = []
    for number in range(given.rounds):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            kept = fit(make_task(epochs), max_steps=steps, run_dir=folder, checkpoint_every=f"{given.every}s")
            written = sorted(Path(folder, "checkpoints").iterdir())
            size = sum(file.stat().st_size for file in written[-1].iterdir())
        plain = fit(make_task(epochs), max_steps=steps)
        number_written = max(1, int(wall(kept) // given.every) + 1)  # and one at the end
        row = {
            "plain_seconds": wall(plain),
            "kept_seconds": wall(kept),
            "stood_still": kept.checkpoint_seconds,
            "checkpoints": number_written,
            "megabytes": size / 1e6,
            "cost_each": (wall(kept) - wall(plain)) / number_written,
        }
        rows.append(row)
        print(
            f"round {number + 1}: {row['plain_seconds']:.2f} s without, {row['kept_seconds']:.2f} s with "
            f"{number_written} checkpoints of {row['megabytes']:.0f} MB, stood still {kept.checkpoint_seconds:.2f} s"
        )
    each = statistics.median(row["cost_each"] for row in rows)
    still = statistics.median(row["stood_still"] / row["checkpoints"] for row in rows)
    print(
        f"one checkpoint: {each:+.3f} s of training time (median of {given.rounds}), of which {still:.3f} s standing still"
    )
    print(f"one every 30 s: {100 * each / 30:+.2f} % (claim: at most 2 %)")
    if given.json:
        Path(given.json).write_text(
            json.dumps({"rounds": rows, "cost_each": each, "share_at_30s": each / 30}, indent=1)
        )


if __name__ == "__main__":
    main()
