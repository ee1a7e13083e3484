"""Claim: what is left of a captured step of LeNet is the chain of kernels that wait for each other; weight gradients run beside it.

The step of the task `mnist` (batch 32, no augmentation) by hand, eight of them in one CUDA graph, microseconds per step:
forward alone, with backward, and with the update (SGD in slices, as in training/capture/sgd_in_slices.py).

    in turn              weight gradients where autograd makes them
    beside               on four streams of their own, as captured steps have them (model/late_weights.py)
    beside, windows      the first convolution's as one product over its windows, laid out while the forward pass runs
    beside, fused        each convolution with its ReLU in one kernel
    none                 no weight gradients and no update: the chain alone

    python benchmarks/gpu_chain.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from tables import show

from manyhands.tasks.models import lenet

BATCH, STEPS, SLICE = 32, 8, 4096
SIDES = {
    "in turn": "",
    "beside": "beside",
    "beside, windows": "beside windows",
    "beside, fused": "beside fused",
    "none": "none",
}
aten = torch.ops.aten


class Chain:
    """One step, written out so that every kernel can be put where it should run."""

    def __init__(self, options: str):
        self.options = options.split()
        layers = [layer.cuda() for layer in lenet() if list(layer.parameters())]
        self.first, self.second, *self.linear = layers
        self.parameters = [p for layer in layers for p in layer.parameters()]
        self.momenta = [torch.zeros_like(p) for p in self.parameters]
        self.x = torch.randn(BATCH, 1, 28, 28, device="cuda")
        self.y = torch.randint(10, (BATCH,), device="cuda")
        self.rate = torch.zeros((), device="cuda")
        self.streams = [torch.cuda.Stream() for _ in range(4)] if "beside" in self.options else []
        self.turn = 0
        self.kept: list[Any] = []  # a recording's memory must not be given out while another stream reads it
        self.gradients: dict[Tensor, Tensor] = {}

    @contextmanager
    def aside(self) -> Iterator[None]:
        if not self.streams:
            yield
            return
        stream = self.streams[self.turn % len(self.streams)]
        self.turn += 1
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        for stream in self.streams[: self.turn]:
            torch.cuda.current_stream().wait_stream(stream)
        self.turn = 0

    def convolved(self, layer: Any, input: Tensor) -> Tensor:
        if "fused" in self.options:
            return torch.cudnn_convolution_relu(
                input, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups
            )
        return F.relu(layer(input))

    def want(self, layer: Any, input: Tensor, gradient: Tensor, windows: Tensor | None = None) -> None:
        """The gradients of a layer's weight and bias."""
        if "none" in self.options:
            return
        self.kept += [input, gradient]
        dims = [dim for dim in range(gradient.dim()) if dim != 1]
        with self.aside():
            if gradient.dim() == 2:
                made = gradient.t().mm(input)
            elif windows is not None:
                made = torch.bmm(gradient.flatten(2), windows).sum(0).view_as(layer.weight)
            else:
                made = self.back(layer, input, gradient, [False, True, False])[1]
            self.gradients[layer.weight] = made
        with self.aside():
            self.gradients[layer.bias] = gradient.sum(dims)

    def back(self, layer: Any, input: Tensor, gradient: Tensor, wanted: list[bool]) -> Any:
        sizes = [layer.out_channels], list(layer.stride), list(layer.padding), list(layer.dilation)
        return aten.convolution_backward(gradient, input, layer.weight, *sizes, False, [0, 0], 1, wanted)

    @torch.no_grad()
    def step(self, upto: str) -> None:
        windows = None
        if "windows" in self.options:
            with self.aside():
                windows = F.pad(self.x, (2, 2, 2, 2)).unfold(2, 5, 1).unfold(3, 5, 1).reshape(BATCH, 784, 25)
        seen = [self.convolved(self.first, self.x)]
        pooled, at = F.max_pool2d(seen[0], 2, return_indices=True)
        seen.append(self.convolved(self.second, pooled))
        again, where = F.max_pool2d(seen[1], 2, return_indices=True)
        inputs = [again.flatten(1)]
        for layer in self.linear[:-1]:
            inputs.append(F.relu(F.linear(inputs[-1], layer.weight).add_(layer.bias)))
        last = self.linear[-1]
        found = torch.log_softmax(F.linear(inputs[-1], last.weight).add_(last.bias), 1)
        loss, weight = aten.nll_loss_forward(found, self.y, None, 1, -100)
        if upto == "forward":
            self.join()
            return
        gradient = aten.nll_loss_backward(torch.ones_like(loss), found, self.y, None, 1, -100, weight)
        gradient = aten._log_softmax_backward_data(gradient, found, 1, torch.float32)
        for number in (2, 1, 0):
            self.want(self.linear[number], inputs[number], gradient)
            gradient = gradient.mm(self.linear[number].weight)
            if number:
                gradient = aten.threshold_backward(gradient, inputs[number], 0)
        gradient = self.unpool(gradient.view_as(again), seen[1], where)
        self.want(self.second, pooled, gradient)
        gradient = self.unpool(self.back(self.second, pooled, gradient, [True, False, False])[0], seen[0], at)
        self.want(self.first, self.x, gradient, windows)
        self.join()
        if upto == "update" and self.gradients:
            made = [self.gradients[p] for p in self.parameters]
            torch._fused_sgd_(
                *(_sliced(tensors) for tensors in (self.parameters, made, self.momenta)),
                weight_decay=0.0, momentum=0.9, lr=self.rate, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
            )  # fmt: skip

    def unpool(self, gradient: Tensor, seen: Tensor, at: Tensor) -> Tensor:
        spread = aten.max_pool2d_with_indices_backward(gradient, seen, [2, 2], [2, 2], [0, 0], [1, 1], False, at)
        return aten.threshold_backward(spread, seen, 0)


def _sliced(tensors: list[Tensor]) -> list[Tensor]:
    return [part for tensor in tensors for part in tensor.detach().contiguous().view(-1).split(SLICE)]


def check() -> None:
    """Both ways of the first convolution, and all streams, give autograd's gradients."""
    for options in SIDES.values():
        if "none" in options:
            continue
        torch.manual_seed(0)
        chain = Chain(options)
        chain.step("backward")
        first, second, linear = chain.first, chain.second, chain.linear
        pooled = F.max_pool2d(F.relu(first(chain.x)), 2)
        values = F.max_pool2d(F.relu(second(pooled)), 2).flatten(1)
        for layer in linear[:-1]:
            values = F.relu(layer(values))
        expected = torch.autograd.grad(F.cross_entropy(linear[-1](values), chain.y), chain.parameters)
        for parameter, value in zip(chain.parameters, expected, strict=True):
            torch.testing.assert_close(chain.gradients[parameter], value, rtol=1e-3, atol=1e-5)


def recorded(options: str, upto: str) -> Callable[[], float]:
    """Microseconds per step, measured anew in each call."""
    chain = Chain(options)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            chain.step(upto)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(STEPS):
            chain.step(upto)

    def measured(repeats: int = 200) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / repeats / STEPS * 1e6

    return measured


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    check()
    parts = ("forward", "backward", "update")
    measured = {(name, part): recorded(options, part) for name, options in SIDES.items() for part in parts}
    found: dict[tuple[str, str], list[float]] = {key: [] for key in measured}
    for _ in range(rounds):
        for key, one in measured.items():
            found[key].append(one())
    rows = [
        {"weight gradients": name, **{f"us up to {part}": statistics.median(found[name, part]) for part in parts}}
        for name in SIDES
    ]
    show(f"LeNet's step in a CUDA graph, batch {BATCH}", rows, rounds=rounds)


if __name__ == "__main__":
    main()
