"""Weight gradients apart from the backward pass: the chain of inputs' gradients first, those of weights when it suits.

Only the gradients of inputs are waited for by others: the stage before, the layer before. So linear and convolution
layers hand those on at once and leave the gradients of their weights to be made later.

    usual       backward   layer 3: input, weight | layer 2: input, weight | layer 1: input, weight
    at the end             3: input | 2: input | 1: input | then all weights, of many chunks of a batch together
    beside                 3: input | 2: input | 1: input        (a GPU runs small kernels side by side)
                              3: weight | 2: weight | 1: weight

`AtTheEnd` is for pipelines: a chunk's gradient is with the stage before it sooner, and one product over half a batch is
cheaper than one a chunk with a sum after each. It holds the inputs and output gradients of these layers until then.
`Beside` is for captured steps: streams of their own inside the recording. The sums are the usual ones. Layers
with other gradients (a subclass, a parametrisation, complex numbers) or with hooks on their parameters stay as they are.
The idea of taking the two apart: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .thin_products import linear, multiply
from .torch_internals import CONVOLUTION_BACKWARD

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Take = Callable[[Layer, Tensor, Tensor], None]  # a layer, its input, the gradient of its output
Waiting = dict[Layer, list[tuple[Tensor, Tensor]]]  # inputs and output gradients whose weight gradient is to be made
_CONVOLUTIONS: dict[type, Callable[..., Tensor]] = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


def take_over(modules: Iterable[nn.Module], take: Take) -> list[Layer]:
    """From now on `take` makes the weight gradients of the plain linear and convolution layers among these modules."""
    chosen: list[Layer] = []
    for module in modules:
        plain = type(module) is nn.Linear or (type(module) in _CONVOLUTIONS and _plainly_padded(module))
        # a complex layer's gradients need conjugates, which autograd knows where to put
        trained = plain and module.weight.requires_grad and not module.weight.dtype.is_complex  # type: ignore[union-attr]
        if trained and "forward" not in vars(module) and not _hooked(module):
            module.forward = partial(_forward, module, take)  # type: ignore[arg-type]
            chosen.append(module)  # type: ignore[arg-type]
    return chosen


def _hooked(layer: nn.Module) -> bool:
    """Whether the user wants to see a gradient on its way into a parameter."""
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return any(getattr(parameter, name, None) for parameter in layer.parameters(False) for name in hooks)


def _plainly_padded(layer: Any) -> bool:
    """With zeros, as many on either side, and with a backward pass that can be asked for in parts."""
    if CONVOLUTION_BACKWARD.found is None:
        return False
    reach = [spacing * (size - 1) for spacing, size in zip(layer.dilation, layer.kernel_size, strict=True)]
    uneven = layer.padding == "same" and any(length % 2 for length in reach)
    return layer.padding_mode == "zeros" and not uneven


def give_back(layers: Iterable[Layer]) -> None:
    """The layers make their own gradients again."""
    for layer in layers:
        vars(layer).pop("forward", None)


def _forward(layer: Layer, take: Take, input: Tensor) -> Tensor:
    if not torch.is_grad_enabled() or torch.is_autocast_enabled(input.device.type):
        return type(layer).forward(layer, input)  # type: ignore[arg-type]
    if not input.requires_grad:
        input = input.detach().requires_grad_()  # autograd passes by only where something wants a gradient
        return _Apart.apply(input, layer, take, False)  # type: ignore[no-any-return]
    return _Apart.apply(input, layer, take, True)  # type: ignore[no-any-return]


class _Apart(torch.autograd.Function):
    """A layer whose backward pass makes the gradient of its input alone."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: Layer, take: Take, wanted: bool) -> Tensor:
        ctx.save_for_backward(input)
        ctx.set_materialize_grads(False)  # no gradient is not a gradient of zeros: weight decay knows the difference
        ctx.job = layer, take, wanted
        weight, bias = layer.weight, layer.bias  # autograd does not look in here
        if not isinstance(layer, nn.Linear):
            convolve = _CONVOLUTIONS[type(layer)]
            return convolve(input, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        if bias is not None and input.is_cuda:  # one kernel fewer than a product with the bias in it, for small ones
            return F.linear(input, weight).add_(bias)
        return linear(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if gradient is None:
            return None, None, None, None
        (input,), (layer, take, wanted) = ctx.saved_tensors, ctx.job
        take(layer, input, gradient)
        if not wanted:
            return None, None, None, None
        if isinstance(layer, nn.Linear):
            return multiply(gradient, layer.weight), None, None, None
        return _convolution(layer, input, gradient, (True, False, False))[0], None, None, None


def weight_gradient(layer: Layer, input: Tensor, gradient: Tensor, total: Tensor | None = None) -> Tensor:
    """The gradient of a layer's weight, added to a total where there is one, which is written over."""
    if isinstance(layer, nn.Linear):
        rows, goals = input.reshape(-1, input.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        return goals.t().matmul(rows) if total is None else total.addmm_(goals.t(), rows)
    made = _convolution(layer, input, gradient, (False, True, False))[1]
    return made if total is None else total.add_(made)


def bias_gradient(layer: Layer, gradient: Tensor, total: Tensor | None = None) -> Tensor | None:
    """The same of its bias, if it has one that is trained."""
    if layer.bias is None or not layer.bias.requires_grad:
        return None
    if isinstance(layer, nn.Linear):
        made = gradient.reshape(-1, gradient.shape[-1]).sum(0)
    else:
        channels = gradient.dim() - len(layer.kernel_size) - 1  # a convolution takes a single sample too
        made = gradient.sum([dim for dim in range(gradient.dim()) if dim != channels])
    return made if total is None else total.add_(made)


def _hand_in(parameter: Tensor | None, gradient: Tensor | None) -> None:
    """Add a gradient to what its parameter has."""
    if parameter is None or gradient is None:
        return
    if parameter.grad is not None:
        parameter.grad.add_(gradient)
    elif gradient.stride() == parameter.stride():
        parameter.grad = gradient
    else:  # optimizers count on the parameter's own layout
        parameter.grad = torch.empty_like(parameter).copy_(gradient)


def _convolution(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, input: Tensor, gradient: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    padding = layer.padding
    if isinstance(padding, str):  # "same" reaches as far to either side, "valid" not at all
        reach = [spacing * (size - 1) for spacing, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        padding = tuple(length // 2 if padding == "same" else 0 for length in reach)
    dims = len(layer.kernel_size)
    bias_size = [layer.out_channels]
    return CONVOLUTION_BACKWARD.found(  # type: ignore[no-any-return]
        gradient, input, layer.weight.detach(), bias_size, layer.stride, padding, layer.dilation, False, [0] * dims,
        layer.groups, list(wanted),
    )  # fmt: skip


class AtTheEnd:
    """Weight gradients of many chunks together, once their backward passes are done.

    In two halves: those of the chunks that pass first may be made where a rank would otherwise wait (`meanwhile`). The
    halves are the same on every rank and whoever was late, and parameters get them at the end (other layers may use them
    too), so when they are made, and where the model was cut, does not show in the last bit of the sums.
    """

    def __init__(self, modules: Iterable[nn.Module]):
        self._halves: tuple[Waiting, Waiting] = ({}, {})
        self._made: dict[Layer, tuple[Tensor | None, Tensor | None]] = {}  # gradients of weight and bias so far
        self._first = 0  # chunks of the first half
        self._second = False  # whether the chunk that passes belongs to the other half
        self._begun: dict[int, int] = {}  # stage -> chunks that have entered their backward pass
        self._left = 0  # passes that the first half still lacks
        self.layers = take_over(modules, self._take)

    def begin(self, chunks: int, stages: Iterable[int] = (0,)) -> None:
        """A batch of so many chunks comes, through each of these stages."""
        self._first = -(-chunks // 2)
        self._begun = dict.fromkeys(stages, 0)
        self._left = self._first * len(self._begun)

    @contextmanager
    def passing(self, stage: int = 0) -> Iterator[None]:
        """The backward pass of the next chunk through a stage."""
        self._begun[stage] += 1
        self._second = self._begun[stage] > self._first
        yield
        if not self._second:
            self._left -= 1

    def _take(self, layer: Layer, input: Tensor, gradient: Tensor) -> None:
        self._halves[self._second].setdefault(layer, []).append((input, gradient))

    def meanwhile(self) -> bool:
        """Make the first half of one layer's; returns whether there was something to do yet."""
        first = self._halves[0]
        if self._left or not first:
            return False
        self._make(*first.popitem())
        return True

    @torch.no_grad()
    def settle(self) -> None:
        """Make what is left, and give the parameters their gradients.

        Layer by layer: the second half adds to what the first has just left in the cache.
        """
        for layer in self.layers:
            for half in self._halves:
                if layer in half:
                    self._make(layer, half.pop(layer))
            weight, bias = self._made.pop(layer, (None, None))
            _hand_in(layer.weight, weight)
            _hand_in(layer.bias, bias)

    @torch.no_grad()
    def _make(self, layer: Layer, parts: list[tuple[Tensor, Tensor]]) -> None:
        together = len({(input.shape[1:], gradient.shape[1:]) for input, gradient in parts}) == 1
        if together and parts[0][0].dim() > 1:
            parts = [(_joined([input for input, _ in parts]), _joined([gradient for _, gradient in parts]))]
        weight, bias = self._made.get(layer, (None, None))
        for input, gradient in parts:
            weight, bias = weight_gradient(layer, input, gradient, weight), bias_gradient(layer, gradient, bias)
        self._made[layer] = weight, bias


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Beside:
    """Weight gradients on streams of their own, while the backward pass goes on; `settle` joins them again."""

    STREAMS = 3

    def __init__(self, modules: Iterable[nn.Module], device: torch.device):
        self._streams = [torch.cuda.Stream(device) for _ in range(self.STREAMS)]
        self._next = 0
        self._busy: set[torch.cuda.Stream] = set()
        self._used: list[Tensor] = []  # kept until the streams are joined: their memory must not be given out before
        self.layers = take_over(modules, self._take)

    @torch.no_grad()
    def _take(self, layer: Layer, input: Tensor, gradient: Tensor) -> None:
        with self._stream():
            total = layer.weight.grad
            made = weight_gradient(layer, input, gradient, total)
            if total is None:
                _hand_in(layer.weight, made)
        if layer.bias is not None:
            with self._stream():
                _hand_in(layer.bias, bias_gradient(layer, gradient))
        self._used += [input, gradient]

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """The next stream, from where the backward pass stands now."""
        stream = self._streams[self._next % self.STREAMS]
        self._next += 1
        self._busy.add(stream)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield

    def settle(self) -> None:
        current = torch.cuda.current_stream()
        for stream in self._busy:  # a stream that is not part of a recording may not be waited for in it
            current.wait_stream(stream)
        self._busy.clear()
        self._used.clear()
