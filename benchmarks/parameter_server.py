"""Claim: our synchronous parameter server trains LeNet at least 1.5 times as fast as one on torch RPC.

The same work on both sides, in turns: LeNet on `glyphs` images, 2 workers of 32 samples each, 1 server, SGD with
momentum, gradients of both workers summed, one update a step, one thread a process. The RPC side is what one
writes by hand: a worker sends its gradients in one call, the server answers the last one of the round and all
others with the new weights. A side's speed in a round is that of its median step.

    python benchmarks/parameter_server.py [--steps 300] [--rounds 5] [--data mnist]
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import statistics
import threading
import time
import warnings

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn.functional as F

import manyhands as mh

WORKERS, SAMPLES, WARM_UP = 2, 32, 20


class Server:
    """Sums the gradients of a round and answers every worker with the weights."""

    def __init__(self, task: mh.Task):
        torch.manual_seed(0)
        self.model = task.model()
        self.optimizer = task.optimizer(list(self.model.named_parameters()))
        self.lock = threading.Lock()
        self.round: torch.futures.Future = torch.futures.Future()
        self.arrived = 0

    @staticmethod
    @rpc.functions.async_execution
    def push_and_pull(server: rpc.RRef, gradients: list[torch.Tensor]) -> torch.futures.Future:
        self = server.local_value()
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            self.arrived += 1
            answer = self.round
            if self.arrived == WORKERS:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.arrived, self.round = 0, torch.futures.Future()
                answer.set_result([parameter.detach() for parameter in self.model.parameters()])
        return answer


def rpc_worker(server: rpc.RRef, data: tuple[torch.Tensor, torch.Tensor], task: mh.Task, steps: int) -> float:
    torch.manual_seed(0)
    model = task.model()
    parameters = list(model.parameters())
    input, target = data
    ends = [time.perf_counter()]
    for _ in range(WARM_UP + steps):
        chosen = torch.randint(len(input), (SAMPLES,))
        loss = F.cross_entropy(model(input[chosen]), target[chosen]) / WORKERS
        gradients = torch.autograd.grad(loss, parameters)
        weights = rpc.rpc_sync(server.owner(), Server.push_and_pull, args=(server, list(gradients)))
        with torch.no_grad():
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)
        ends.append(time.perf_counter())
    return statistics.median(after - before for before, after in itertools.pairwise(ends))


def rpc_process(index: int, port: int, task_name: str, steps: int, answer: mp.Queue) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    name = "server" if index == WORKERS else f"worker{index}"
    rpc.init_rpc(name, rank=index, world_size=WORKERS + 1)
    if index == WORKERS:
        task = mh.load_task(task_name)
        server = rpc.RRef(Server(task))
        data = task.train()  # type: ignore[operator]
        calls = [
            rpc.rpc_async(f"worker{worker}", rpc_worker, args=(server, data, task, steps), timeout=600)
            for worker in range(WORKERS)
        ]
        answer.put(statistics.mean(call.wait() for call in calls))
    rpc.shutdown()


def by_rpc(task_name: str, steps: int) -> float:
    """Samples a second of the RPC server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    answer = context.Queue()
    processes = [
        context.Process(target=rpc_process, args=(index, port, task_name, steps, answer))
        for index in range(WORKERS + 1)
    ]
    for process in processes:
        process.start()
    seconds = answer.get(timeout=600)
    for process in processes:
        process.join(60)
    return WORKERS * SAMPLES / seconds


def by_ours(task_name: str, steps: int, strategy: str) -> float:
    task = mh.load_task(task_name).replace(batch_size=WORKERS * SAMPLES, schedule=None, test=None, epochs=100)
    run = mh.fit(task, strategy, ranks=WORKERS, threads=1, max_steps=steps + WARM_UP, progress=False)
    assert run.step_ms is not None
    return WORKERS * SAMPLES / run.step_ms["median"] * 1000


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--data", default="glyphs:train=20000")
    chosen = options.parse_args()
    sides = {
        "torch RPC": lambda: by_rpc(chosen.data, chosen.steps),
        "parameter_server": lambda: by_ours(chosen.data, chosen.steps, "parameter_server"),
        "parameter_server:mode=async": lambda: by_ours(chosen.data, chosen.steps, "parameter_server:mode=async"),
        "parameter_server:over=network": lambda: by_ours(chosen.data, chosen.steps, "parameter_server:over=network"),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(chosen.rounds):
        for name, measure in sides.items():
            speeds[name].append(measure())
    print(f"samples/s, median of {chosen.rounds} rounds (torch {torch.__version__}, {os.cpu_count()} cores)")
    base = statistics.median(speeds["torch RPC"])
    for name, found in speeds.items():
        middle = statistics.median(found)
        print(f"{name:32} {middle:8.0f}   {middle / base:5.2f} x   ({min(found):.0f} to {max(found):.0f})")
    ratios = [ours / theirs for ours, theirs in zip(speeds["parameter_server"], speeds["torch RPC"], strict=True)]
    print(f"ratio of each round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; claimed: at least 1.5")


if __name__ == "__main__":
    main()
