"""Images with their channels first or last: which order in memory suits a model's layers on CPU.

    channels first    r r r r  g g g g  b b b b        torch's usual
    channels last     r g b  r g b  r g b  r g b       next to each other: a layer reads a pixel's channels at once

Wide convolutions, pooling and BatchNorm run up to several times as fast on channels last; narrow convolutions, GroupNorm and
means over whole images run slower. A layer's output has the layout of its weight, so that laying out the weights is enough; or that of the images it gets.

The choice is estimated from the shapes in one pass over a few samples, not timed: the same model gets the same layout in
every run, on every rank and after a resume, and with it the same sums to the last bit. The costs are nanoseconds of forward
and backward measured with one thread on an Intel Xeon at 2.8 GHz (benchmarks/layout.py measures layers and models again).
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .torch_internals import DISPATCH_MODE
from .without_compiler import call_without_compiler

LEAST_GAIN = 0.05  # of the estimate: closer calls stay as they are
NARROW = 16  # channels; convolutions of fewer gain nothing

Cost = tuple[float, float]  # nanoseconds with channels first, and with channels last


def _by_element(first: float, last: float, of_output: bool = False) -> Callable[[tuple[Any, ...], Any], Cost]:
    def cost(arguments: tuple[Any, ...], output: Any) -> Cost:
        count = (output if of_output else arguments[0]).numel()
        return first * count, last * count

    return cost


def _convolution(arguments: tuple[Any, ...], output: Tensor) -> Cost:
    input, weight, transposed, groups = arguments[0], arguments[1], arguments[6], arguments[8]
    touched = input.numel() + output.numel()
    products = (input if transposed else output).numel() * weight[0].numel()
    first = 0.075 * products + 2.5 * touched
    if transposed or 1 < groups < input.shape[1]:
        return first, 1.1 * first
    if input.shape[1] < NARROW:
        return 2 * first, 2.3 * first
    return first, 0.055 * products + 1.6 * touched


def _means(arguments: tuple[Any, ...], output: Tensor) -> Cost:
    count = arguments[0].numel()
    return (1.8 * count, 5.2 * count) if output.numel() < count / 4 else (0.0, 0.0)


def _flattened(arguments: tuple[Any, ...], output: Tensor) -> Cost:
    input = arguments[0]
    joins = output.dim() != 4 and input.shape[2:].numel() > 1
    return (0.5 * input.numel(), 4.1 * input.numel()) if joins else (0.0, 0.0)


_COSTS: dict[str, Callable[[tuple[Any, ...], Any], Cost]] = {
    "convolution": _convolution,
    "max_pool2d_with_indices": _by_element(8.0, 2.5),
    "avg_pool2d": _by_element(7.2, 2.1),
    "native_batch_norm": _by_element(5.4, 3.4),
    "_native_batch_norm_legit": _by_element(5.4, 3.4),
    "_batch_norm_with_update": _by_element(5.4, 3.4),
    "native_group_norm": _by_element(3.6, 5.0),
    "upsample_bilinear2d": _by_element(15.0, 4.2, of_output=True),
    "upsample_nearest2d": _by_element(6.6, 2.1, of_output=True),
    "_adaptive_avg_pool2d": _means,
    "mean": _means,
    "view": _flattened,
    "_unsafe_view": _flattened,
}


def _estimate() -> Any:
    """A mode that adds up what the layers of a forward pass cost in either layout."""
    mode: Any = DISPATCH_MODE.found

    class Estimate(mode):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.last = 0.0

        def __torch_dispatch__(self, call: Any, types: Any, arguments: tuple[Any, ...] = (), named: Any = None) -> Any:
            output = call(*arguments, **(named or {}))
            cost = _COSTS.get(call.overloadpacket.__name__)
            if cost is not None and isinstance(arguments[0], Tensor) and arguments[0].dim() == 4:
                first, last = cost(arguments, output)
                self.first, self.last = self.first + first, self.last + last
            return output

    call_without_compiler(Estimate.__torch_dispatch__)
    return Estimate()


def channels_last_may_pay(model: nn.Module) -> bool:
    """Whether it is worth a copy of the model to find out: it has images and has not chosen a layout itself.

    The costs were measured with oneDNN on x86 alone; InstanceNorm copies what has its channels last.
    """
    return (
        platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and DISPATCH_MODE.found is not None
        and any(isinstance(module, nn.Conv2d) for module in model.modules())
        and not any(isinstance(module, nn.InstanceNorm2d) for module in model.modules())
        and all(parameter.is_contiguous() for parameter in model.parameters())
    )


def channels_last_pays(model: nn.Module, pass_through: Callable[[nn.Module], Tensor]) -> bool:
    """Whether a model that may be had better have its channels last. `pass_through` runs it over a few samples; it is spent.

    One that is no better off or does not work in the other layout (a `view` of an activation fails there) stays as it is.
    """
    try:
        model.eval()
        with torch.no_grad(), _estimate() as estimate:
            usual = pass_through(model)
        if estimate.last > (1 - LEAST_GAIN) * estimate.first:
            return False
        lay_channels_last(model)
        with torch.no_grad():
            other = pass_through(model)
        model.train()
        pass_through(model).sum().backward()
    except Exception:  # what a model does wrong is said where it is trained
        return False
    return torch.allclose(usual, other, rtol=1e-3, atol=1e-4)


def lay_channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def take_channels_last(model: nn.Module) -> None:
    """The same layout for a model whose weights must lie row by row: convolutions lay out the images they are given."""

    def laid_out(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return tuple(  # of a batch; a single image has three dimensions, and an argument by name is not here
            image.contiguous(memory_format=torch.channels_last) if image.dim() == 4 else image for image in inputs
        )

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(laid_out)
