"""Both sides of the GPU benchmarks of larger models: `fit`, and the best loop one writes by hand for the same task.

The loop by hand has its data on the device, gathers batches there by index, computes in bf16 by autocast, updates with the fused
optimizer, and reads losses at the end alone; as asked, its model is compiled and its step is one CUDA graph. It has neither
schedule nor record. Sides take turns; a side is measured from scratch in every round, without its first steps.

Peak memory is CUDA's own (`max_memory_allocated`), data and what `fit` does before its first step included; on CPU it is left out,
because there it would be the whole process's.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from tables import show

import manyhands as mh

WARM_UP = 5  # steps that do not count: the first ones compile and choose kernels


@dataclass(frozen=True)
class Measured:
    rate: float  # samples per second
    peak: float | None  # bytes


Side = Callable[[], Measured]


def fitted(task: mh.Task, device: str, **keywords: Any) -> Measured:
    """The second of two epochs of a fit."""
    run = mh.fit(task, "single", epochs=2, device=device, precision="bf16", progress=False, **keywords)
    if device == "cuda" and keywords.get("capture") != "off":
        assert run.capture is not None
        assert run.capture["reason"] is None, run.capture
    peak = run.per_rank[0]["peak_memory_bytes"] if device == "cuda" else None
    return Measured(run.epochs[1]["samples"] / run.epochs[1]["seconds"], peak)


def by_hand(
    task: mh.Task, device: str, *, compile: bool = False, graph: bool = False, channels_last: bool = False
) -> Measured:
    """As many steps as an epoch has, after a few that do not count."""
    cuda = device == "cuda"
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(task.seed)
    model: Any = task.model().to(device).train()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    x, y = (part.to(device) for part in task.train())
    optimizer = task.optimizer(model.named_parameters())
    for group in optimizer.param_groups:
        group["fused"] = True
        if graph and "capturable" in group:
            group["capturable"] = True
    if compile:
        model = torch.compile(model)  # not model.compile(), which takes the children of an nn.Sequential one by one

    def step(input: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = task.loss(model(input), target)  # type: ignore[misc]
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = _batches(x, y, task.batch_size, channels_last)
    if graph:
        step = _recorded(step, batches)
    for _ in range(WARM_UP):
        step(*next(batches))
    _wait(cuda)
    began = time.perf_counter()
    losses = [step(*next(batches)) for _ in range(len(x) // task.batch_size)]
    _wait(cuda)
    seconds = time.perf_counter() - began
    assert torch.isfinite(torch.stack(losses)).all()
    peak = torch.cuda.max_memory_allocated() if cuda else None
    return Measured(len(losses) * task.batch_size / seconds, peak)


def _batches(x: Tensor, y: Tensor, size: int, channels_last: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Epoch after epoch, each shuffled, without the short batch at its end."""
    while True:
        for indices in torch.randperm(len(x), device=x.device).split(size):
            if len(indices) == size:
                input = x[indices]
                yield input.contiguous(memory_format=torch.channels_last) if channels_last else input, y[indices]


def _recorded(
    step: Callable[[Tensor, Tensor], Tensor], batches: Iterator[tuple[Tensor, Tensor]]
) -> Callable[[Tensor, Tensor], Tensor]:
    """The step as one CUDA graph that reads its batch from a fixed place."""
    places = [part.clone() for part in next(batches)]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            step(*places)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(*places)

    def replayed(input: Tensor, target: Tensor) -> Tensor:
        for place, part in zip(places, (input, target), strict=True):
            place.copy_(part)
        graph.replay()
        return loss.clone()

    return replayed


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def measure(title: str, sides: Mapping[str, Side], rounds: int, unit: str, units: int = 1, **facts: Any) -> None:
    """All sides, interleaved, as a table: `units` of what is counted are in a sample."""
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    middle = {name: units * statistics.median(one.rate for one in values) for name, values in found.items()}
    best = max(value for name, value in middle.items() if name.startswith("by hand"))
    rows = []
    for name, values in found.items():
        peaks = [one.peak for one in values if one.peak is not None]
        rows.append(
            {
                "side": name,
                f"{unit}/s (median)": middle[name],
                "lowest": units * min(one.rate for one in values),
                "highest": units * max(one.rate for one in values),
                "of the best by hand": middle[name] / best,
                "peak GiB": statistics.median(peaks) / 2**30 if peaks else "-",
            }
        )
    show(title, rows, rounds=rounds, **facts)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
