"""A pipeline of 2 stages and 4 chunks on 2 cores against one process, model_parallel and torch.distributed.pipelining.

The aims are 0.80 of single's step, 1.25 times model_parallel and 1.3 times torch.distributed.pipelining.

The same work on every side, in turns: an MLP of 8 x (Linear 1024, ReLU), 256 samples a step, cross entropy over 1024
classes, SGD, one thread a process. torch.distributed.pipelining runs over gloo with the same 4 micro-batches, its stages
cut in the middle. Of each side the median step after a warm-up counts; the ratios are those of each round.

"two by hand at once" is a control: two processes that know nothing of each other, each with the whole model. On two cores
of one's own they take as long as one. Where they take longer, the cores are shared with somebody, one who uses both has
less of them than twice one, and the pipeline's share of single's step is that much larger.

    python benchmarks/pipeline.py [--steps 12] [--rounds 5] [--chunks 4]
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tables import show
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import manyhands as mh
from manyhands.world.launch.processes import LaunchedProcess, launch

WIDTH, LAYERS, SAMPLES, WARM_UP = 1024, 8, 256, 3
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


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


def by_ours(strategy: str, ranks: int, steps: int) -> tuple[float, float]:
    """Milliseconds of a step, and the loss of the last one."""
    run = mh.fit(task(), strategy, ranks=ranks, threads=1, max_steps=WARM_UP + steps, device="cpu", progress=False)
    assert run.step_ms is not None
    return run.step_ms["median"], float(run.losses[-1] or 0.0)


def by_hand(steps: int, processes: int = 1) -> tuple[float, float]:
    """One process as people write it, or several at once; malloc gives freed memory back, as it does by default."""

    def body(process: LaunchedProcess) -> tuple[float, float]:
        network = model()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        input, target = data()
        spent = []
        for step in range(WARM_UP + steps):
            began = time.perf_counter()
            chosen = (torch.arange(SAMPLES) + step * SAMPLES) % len(input)
            loss = nn.functional.cross_entropy(network(input[chosen]), target[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            spent.append(1000 * (time.perf_counter() - began))
        return statistics.median(spent[WARM_UP:]), loss.item()

    found: list[tuple[float, float]] = launch(body, processes, threads=1, keep_memory=False)
    return statistics.mean(spent for spent, _ in found), found[0][1]


def torch_stage(index: int, port: int, schedule: str, chunks: int, steps: int, answer: mp.Queue) -> None:
    """One of two processes that train with torch.distributed.pipelining."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=index, world_size=2)
    layers = list(model())
    part = nn.Sequential(*(layers[:LAYERS] if index == 0 else layers[LAYERS:]))
    stage = PipelineStage(part, index, 2, torch.device("cpu"))
    runner = SCHEDULES[schedule](stage, n_microbatches=chunks, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    input, target = data()
    spent, losses = [], []
    dist.barrier()
    for step in range(WARM_UP + steps):
        began = time.perf_counter()
        chosen = (torch.arange(SAMPLES) + step * SAMPLES) % len(input)
        if index == 0:
            runner.step(input[chosen])
        else:
            runner.step(target=target[chosen], losses=losses)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        spent.append(1000 * (time.perf_counter() - began))
    if index:
        answer.put((statistics.median(spent[WARM_UP:]), float(sum(losses[-chunks:]) / chunks)))
    dist.barrier()
    dist.destroy_process_group()


def by_torch(schedule: str, chunks: int, steps: int) -> tuple[float, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    answer = context.Queue()
    processes = [
        context.Process(target=torch_stage, args=(index, port, schedule, chunks, steps, answer)) for index in range(2)
    ]
    for process in processes:
        process.start()
    result = answer.get(timeout=300)
    for process in processes:
        process.join(60)
    return result


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--chunks", type=int, default=4)
    chosen = options.parse_args()
    steps, chunks = chosen.steps, chosen.chunks
    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "single": lambda: by_ours("single", 1, steps),
        "pipeline": lambda: by_ours(f"pipeline:chunks={chunks}", 2, steps),
        "model_parallel": lambda: by_ours("model_parallel", 2, steps),
        "pipeline:schedule=gpipe": lambda: by_ours(f"pipeline:chunks={chunks},schedule=gpipe", 2, steps),
        "torch pipelining 1F1B": lambda: by_torch("1f1b", chunks, steps),
        "torch pipelining GPipe": lambda: by_torch("gpipe", chunks, steps),
        "single by hand": lambda: by_hand(steps),
        "two by hand at once": lambda: by_hand(steps, processes=2),
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(chosen.rounds):
        for name, measure in sides.items():
            found[name].append(measure()[0])
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
