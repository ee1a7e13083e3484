"""ddp over shared memory and hogwild against plain torch DDP over gloo, on one host.

LeNet on 28x28 images, 32 samples a rank, one thread a rank. Sides, in turn, round after round: one process by hand (three
times a round, because a lone process runs at very different speeds on a shared machine); as many processes by hand that
share nothing, which is all that the cores give; plain torch DistributedDataParallel over gloo by hand; `fit` with ddp and
with hogwild. Speeds are samples per second of training steps alone, medians over rounds. Perfect would be the single
process times the ranks.

    python benchmarks/scaling.py [--ranks 2 8 16] [--rounds 3] [--steps 200] [--samples 32]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from loop_overhead import loss_of, make_model, make_optimizer
from tables import show

import manyhands as mh
from manyhands.world.launch.processes import LaunchedProcess, launch
from manyhands.world.rank import rank_of


def data(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, 1, 28, 28, generator=generator), torch.randint(10, (samples,), generator=generator)


def by_hand(ranks: int, per_rank: int, steps: int, apart: bool = False) -> float:
    """What people write: torch's DDP over gloo, every rank its own part of the data, batches by index.

    Or processes `apart` from each other, each with a model of its own.
    """
    together = ranks > 1 and not apart

    def body(process: LaunchedProcess) -> float:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        x, y = data(per_rank * 50)
        torch.manual_seed(0)
        model = make_model()
        if together:
            _, store = rank_of(process, torch.device("cpu"))
            dist.init_process_group("gloo", store=store, rank=process.index, world_size=ranks)
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = make_optimizer(model.parameters())
        order = torch.cat([torch.randperm(len(x)) for _ in range(-(-steps // 50))]).split(per_rank)[:steps]
        if together:
            dist.barrier()
        began = time.perf_counter()
        for indices in order:
            loss = loss_of(model(x[indices]), y[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        if together:
            dist.barrier()
        seconds = time.perf_counter() - began
        if together:
            dist.destroy_process_group()
        return ranks * per_rank * steps / seconds

    return float(statistics.mean(launch(body, ranks, threads=1, keep_memory=False)))  # as in plain processes


def ours(strategy: str, ranks: int, per_rank: int, steps: int) -> float:
    batch = ranks * per_rank
    task = mh.Task(
        make_model, data(batch * 50), loss_of, make_optimizer, batch_size=batch, epochs=-(-steps // 50), name="scaling"
    )
    run = mh.fit(task, strategy, ranks=ranks, threads=1, device="cpu", progress=False, max_steps=steps)
    assert run.samples_per_second is not None
    return run.samples_per_second


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=32, help="a rank")
    options = parser.parse_args()
    sides: dict[tuple[str, int], Callable[[], float]] = {
        ("one process by hand", 1): lambda: by_hand(1, options.samples, options.steps)
    }
    for ranks in options.ranks:
        sides["by hand, nothing shared", ranks] = lambda n=ranks: by_hand(n, options.samples, options.steps, apart=True)  # type: ignore[misc]
        sides["torch DDP over gloo by hand", ranks] = lambda n=ranks: by_hand(n, options.samples, options.steps)  # type: ignore[misc]
        for strategy in ("ddp", "ddp:transport=gloo", "hogwild"):
            sides[f"manyhands {strategy}", ranks] = lambda s=strategy, n=ranks: ours(
                s, n, options.samples, options.steps
            )  # type: ignore[misc]
    speeds: dict[tuple[str, int], list[float]] = {key: [] for key in sides}
    for _ in range(options.rounds):
        for key, side in sides.items():
            speeds[key] += [side() for _ in range(3 if key[1] == 1 else 1)]
    medians = {key: statistics.median(values) for key, values in speeds.items()}
    one = medians["one process by hand", 1]
    rows = [
        {
            "side": name,
            "ranks": ranks,
            "samples/s": medians[name, ranks],
            "slowest": min(speeds[name, ranks]),
            "fastest": max(speeds[name, ranks]),
            "of perfect": medians[name, ranks] / (one * ranks),
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
