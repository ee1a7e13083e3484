"""The strategies as people write them with torch alone, for the benchmarks that compare: what a task trains, by hand.

    apart               processes that know nothing of each other, each with a shard of every batch
    ddp                 DistributedDataParallel over gloo
    fsdp                fully_shard (FSDP2) over gloo, in the units that our fsdp takes
    pipeline            torch.distributed.pipelining over gloo, 1F1B or GPipe, cut at the child that halves the time best
    parameter_server    torch RPC: a worker hands in its gradients and is answered with the weights of the round

Every side reads the batches that `fit` reads, in the same order, so that its losses can be held against ours. A step's
time is that between the ends of two steps, batches by index included; the median of a rank's steps counts, the mean of
the ranks'. malloc gives freed memory back, as it does by default.
"""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import manyhands as mh
from manyhands.world.launch.processes import LaunchedProcess, launch

WARM_UP = 3
SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
Step = Callable[[Tensor, Tensor], Tensor | None]  # input and target -> the loss, where this rank knows it


class Measured(NamedTuple):
    step_ms: float
    loss: float  # of the last step, over all ranks


def by_torch(task: mh.Task, strategy: str, ranks: int, steps: int, **options: Any) -> Measured:
    """One of the sides above, trained for some steps after a warm-up."""
    begin = partial(SIDES[strategy], **options)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def body(process: LaunchedProcess) -> tuple[float, float | None] | None:
        import torch_sides  # by name: RPC finds functions so

        return torch_sides._train(process.index, task, begin, strategy, ranks, steps, port)

    processes = ranks + (strategy == "parameter_server")
    found = [answer for answer in launch(body, processes, threads=1, keep_memory=False) if answer is not None]
    losses = [loss for _, loss in found if loss is not None]
    return Measured(statistics.mean(spent for spent, _ in found), statistics.mean(losses))


def _train(
    rank: int, task: mh.Task, begin: Callable[..., Step], strategy: str, ranks: int, steps: int, port: int
) -> tuple[float, float | None] | None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    served, whole = strategy == "parameter_server", strategy == "pipeline"
    torch.manual_seed(task.seed)
    model = task.model()  # as `fit` does it: the model first, then the data, under one seed
    input, target = task.train()  # type: ignore[operator, misc]
    if served:
        Server.here = Server(task, model, ranks)
        rpc.init_rpc(str(rank), rank=rank, world_size=ranks + 1)
        if rank == ranks:
            rpc.shutdown()  # once the workers are through
            return None
    else:
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    step = begin(task, model, rank, ranks)
    order = _order(len(input), task, 0 if whole else rank, 1 if whole else ranks)
    ends = []
    for chosen in itertools.islice(order, WARM_UP + steps):
        loss = step(input[chosen], target[chosen])
        ends.append(time.perf_counter())
    spent = statistics.median(after - before for before, after in itertools.pairwise(ends[WARM_UP - 1 :]))
    if served:
        rpc.shutdown()
    else:
        dist.barrier()
        del step  # before the group: DDP's end would wait for gloo's thread, which waits for Python
        dist.destroy_process_group()
    return 1000 * spent, None if loss is None else float(loss)


def _order(samples: int, task: mh.Task, rank: int, ranks: int) -> Iterator[Tensor]:
    sampler = mh.nn.ShardSampler(samples, task.batch_size, rank, ranks, task.seed)
    while True:
        yield from map(torch.tensor, sampler)


# ---------------------------------------------------------------- a whole model on every rank


def _ordinary(task: mh.Task, model: nn.Module) -> Step:
    optimizer = task.optimizer(model.named_parameters())

    def step(input: Tensor, target: Tensor) -> Tensor:
        loss = task.loss(model(input), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def apart(task: mh.Task, model: nn.Module, rank: int, ranks: int) -> Step:
    return _ordinary(task, model)


def ddp(task: mh.Task, model: nn.Module, rank: int, ranks: int) -> Step:
    return _ordinary(task, nn.parallel.DistributedDataParallel(model))


def fsdp(task: mh.Task, model: nn.Module, rank: int, ranks: int, units: list[str]) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    for name in units:
        fully_shard(model.get_submodule(name), mesh=mesh)
    return _ordinary(task, fully_shard(model, mesh=mesh))


# ---------------------------------------------------------------- a pipeline


def pipeline(
    task: mh.Task, model: nn.Module, rank: int, ranks: int, cuts: list[int], chunks: int = 4, schedule: str = "1f1b"
) -> Step:
    """`cuts` are the children that the second and later stages begin with (see `cuts_of`)."""
    bounds = [0, *cuts, len(model)]  # type: ignore[arg-type]
    part = model[bounds[rank] : bounds[rank + 1]]  # type: ignore[index]
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    runner = SCHEDULES[schedule](stage, n_microbatches=chunks, loss_fn=task.loss)
    optimizer = task.optimizer(part.named_parameters())

    def step(input: Tensor, target: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        if rank == 0:
            runner.step(input)
        elif rank == ranks - 1:
            runner.step(target=target, losses=losses)
        else:
            runner.step()
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().detach() if losses else None

    return step


def cuts_of(task: mh.Task, ranks: int) -> list[int]:
    """Where a careful person would cut a chain: before the child that comes nearest to an equal share of the time."""
    torch.manual_seed(task.seed)
    model, threads = task.model(), torch.get_num_threads()
    torch.set_num_threads(1)
    input = task.train()[0][: task.batch_size // 4]  # type: ignore[operator, index]
    costs = []
    for child in model:  # type: ignore[attr-defined]
        spent = []
        for _ in range(4):
            given = input.detach().requires_grad_(input.is_floating_point())
            began = time.perf_counter()
            output = child(given)
            if output.requires_grad:
                output.sum().backward()
            spent.append(time.perf_counter() - began)
        costs.append(min(spent))
        input = output
    torch.set_num_threads(threads)
    sums = list(itertools.accumulate(costs))
    return [
        1 + min(range(len(sums)), key=lambda child, at=number: abs(sums[child] - at * sums[-1] / ranks))  # type: ignore[misc]
        for number in range(1, ranks)
    ]


# ---------------------------------------------------------------- a parameter server


class Server:
    """Sums the gradients of a round and answers every worker with the weights."""

    here: Server  # of the process that serves

    def __init__(self, task: mh.Task, model: nn.Module, ranks: int):
        self.ranks, self.parameters = ranks, list(model.parameters())
        self.optimizer = task.optimizer(model.named_parameters())
        self.lock = threading.Lock()
        self.round: torch.futures.Future = torch.futures.Future()
        self.arrived = 0

    def take(self, gradients: list[Tensor]) -> torch.futures.Future:
        with self.lock:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            self.arrived += 1
            answer = self.round
            if self.arrived == self.ranks:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.arrived, self.round = 0, torch.futures.Future()
                answer.set_result([parameter.detach() for parameter in self.parameters])
        return answer


@rpc.functions.async_execution
def push_and_pull(gradients: list[Tensor]) -> torch.futures.Future:
    return Server.here.take(gradients)


def parameter_server(task: mh.Task, model: nn.Module, rank: int, ranks: int) -> Step:
    parameters = list(model.parameters())

    def step(input: Tensor, target: Tensor) -> Tensor:
        loss = task.loss(model(input), target)
        gradients = torch.autograd.grad(loss / ranks, parameters)
        weights = rpc.rpc_sync(str(ranks), push_and_pull, args=(list(gradients),), timeout=60)
        with torch.no_grad():
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)
        return loss.detach()

    return step


SIDES: dict[str, Callable[..., Step]] = {
    "apart": apart,
    "ddp": ddp,
    "fsdp": fsdp,
    "pipeline": pipeline,
    "parameter_server": parameter_server,
}
