"""A trial: passes of a copy of the model over a few samples, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...data import nest
from ...data.process_state import drawn_from, generators, seeded
from ...model.torch_internals import BATCHNORMS
from ...strategies.job import Job
from ...strategies.pieces.units import units_of
from .mean_losses import MeanLosses
from .refusals import check_loss

NOISE = 2e-6  # differences that float32 explains


@dataclass(frozen=True)
class Samples:
    """A few samples as a rank would get them."""

    input: Any
    target: Any
    keys: Tensor
    count: int


@dataclass
class Pass:
    """One forward and backward pass."""

    loss: float
    units: float  # what the loss is a mean over: samples, or what the job's weight counts
    gradients: dict[str, Tensor | None]
    moved: set[str]  # generators that were drawn from
    outputs: dict[str, Tensor] = field(default_factory=dict)  # of modules, where asked for


class Trial:
    """A copy of the model with its loss, to run passes on."""

    def __init__(self, job: Job, double: bool = False):
        self.model, self.calling, self.augment = job.copies()
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, BATCHNORMS):
                with suppress(Exception):  # a scripted one keeps its own
                    module.forward = partial(_with_fixed_statistics, module)  # type: ignore[method-assign]
        self.place = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        self.double = double
        if double:
            self.model._apply(_widened)
        self.seed, self.weight = job.task.seed, job.weight

    def run(
        self,
        samples: Samples,
        seed: int = 0,
        mode: AbstractContextManager[Any] | None = None,
        watch: bool = False,
        backward: bool = True,
        check: Callable[[Any, Any], None] | None = None,
    ) -> Pass:
        """One pass; `check` looks at the output and the target before the loss does."""
        outputs: dict[str, Tensor] = {}
        with seeded(self.seed + seed), mode or nullcontext(), _outputs(self.model, outputs) if watch else nullcontext():
            before = generators()
            input, target = self.input_of(samples), nest.each(samples.target, self._own)
            if watch and self.augment is not None:
                outputs["augment"] = next(nest.leaves(input)).detach().clone()
            output = self.calling.output(self.model, input)
            if check is not None:
                check(output, target)
            loss = self.calling.loss_of(output, target)
            check_loss(loss)
            if backward and loss.requires_grad:
                loss.backward()
            after = generators()
        named = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        gradients = {name: _dense(parameter.grad) for name, parameter in named} if backward else {}
        for _, parameter in named:
            parameter.grad = None
        units = samples.count if self.weight is None else float(units_of(self.weight, target))
        return Pass(float(loss.detach()), units, gradients, drawn_from(before, after), outputs)

    def input_of(self, samples: Samples) -> Any:
        """What the model is called with."""
        input = nest.each(samples.input, self._own)
        return input if self.augment is None else self.augment(input, samples.keys.to(self.place))

    def _own(self, tensor: Tensor) -> Tensor:
        """A copy, because a model may write into what it is given."""
        tensor = tensor.detach().to(self.place, copy=True)
        return _widened(tensor) if self.double else tensor

    def tensors(self) -> dict[str, Tensor]:
        found = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {name: tensor.detach().clone() for name, tensor in found}


# ---------------------------------------------------------------- what a pass is watched with


class Forced(TorchFunctionMode):
    """Uniform numbers come out as the smallest, or as the largest, that there is; the generator is left alone."""

    def __init__(self, share: float):
        super().__init__()
        self.share = share

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        share = min(self.share, 1 - 2**-20)
        if function is torch.rand:
            return torch.zeros(*args, **{key: value for key, value in kwargs.items() if key != "generator"}).fill_(
                share
            )
        if function is torch.rand_like:
            return torch.zeros_like(*args, **kwargs).fill_(share)
        if function is Tensor.uniform_:
            low, high = ([*args[1:], *kwargs.values(), 0.0, 1.0])[:2] if len(args) + len(kwargs) > 2 else (0.0, 1.0)
            return args[0].fill_(low + share * (high - low))
        if function is torch.bernoulli and len(args) == 1 and not kwargs:
            return (args[0] > (1.0 - share)).to(args[0].dtype)
        return function(*args, **kwargs)


class Asked(MeanLosses):
    """Notes whether the forward pass asks for the contents of a tensor, which it can then branch on, and whether
    something is computed in 16 bits, where the rounding of parts alone is seen in the weights."""

    QUESTIONS = frozenset({"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "nonzero", "unique"})

    def __init__(self) -> None:
        super().__init__()
        self.contents = False
        self.coarse: str | None = None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.contents = self.contents or getattr(function, "__name__", "") in self.QUESTIONS
        result = super().__torch_function__(function, types, args, kwargs)
        if isinstance(result, Tensor) and result.dtype in (torch.float16, torch.bfloat16):
            self.coarse = str(result.dtype).removeprefix("torch.")
        return result


def mean_loss(passes: Sequence[Pass]) -> float:
    """Over the units of all; a part without any has no loss."""
    total = sum(part.units for part in passes)
    return sum(part.loss * part.units for part in passes if part.units) / total if total else float("nan")


def difference(one: Pass, parts: Sequence[Pass]) -> float:
    """How far a pass is from the mean over its parts: the largest relative difference of loss and gradients.

    Rounding grows on its way back through a deep model, so gradients count a tenth.
    """
    loss = mean_loss(parts)
    apart = abs(one.loss - loss) / max(abs(one.loss), abs(loss), 1e-12)
    if not np.isfinite(apart):
        return 0.0 if not np.isfinite(one.loss) else float("inf")  # a loss that is not finite ends the fit anyway
    largest = max((float(g.abs().max()) for g in one.gradients.values() if g is not None and g.numel()), default=0.0)
    for _, mine, total in gradients_of(one, parts):
        scale = max(float(mine.abs().max()), 1e-2 * largest, 1e-30)
        apart = max(apart, 0.1 * float((mine - total).abs().max()) / scale)
    return apart


def gradients_of(one: Pass, parts: Sequence[Pass]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Of every parameter that was reached: its name, its gradient of the whole pass, and the one from the parts."""
    for name, gradient in one.gradients.items():
        found = [(part.units / one.units, part.gradients.get(name)) for part in parts if part.units]
        terms = [share * own for share, own in found if own is not None]
        if gradient is None and not terms:
            continue
        mine = torch.zeros_like(terms[0]) if gradient is None else gradient
        if mine.numel():
            yield name, mine, sum(terms, torch.zeros_like(mine))


def same_loss(one: Pass, other: Pass) -> bool:
    return difference(replace(one, gradients={}), [other]) <= NOISE


def unused_in(found: Pass) -> frozenset[str]:
    return frozenset(name for name, gradient in found.gradients.items() if gradient is None)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> bool:
    if one.shape != other.shape:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    scale = max(float(one.abs().max()) if one.numel() else 0.0, 1e-30)
    return not one.numel() or float((one - other).abs().max()) <= tolerance * scale


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _widened(tensor: Tensor) -> Tensor:
    wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(tensor.dtype)
    return tensor.to(wider) if wider is not None else tensor


def _with_fixed_statistics(module: Any, input: Tensor) -> Tensor:
    if not module.training:
        return type(module).forward(module, input)
    mean, variance = input.new_zeros(input.shape[1]), input.new_ones(input.shape[1])
    return F.batch_norm(input, mean, variance, module.weight, module.bias, False, 0.0, module.eps)


@contextmanager
def hooked(model: nn.Module, entered: Callable[..., Any], left: Callable[..., Any]) -> Iterator[None]:
    """Call `entered` and `left` around every module's forward, children before their parents."""
    handles = []
    for name, module in model.named_modules():
        with suppress(Exception):  # scripted modules take no hooks
            handles.append(module.register_forward_pre_hook(entered))
            handles.append(module.register_forward_hook(partial(left, name=name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _outputs(model: nn.Module, into: dict[str, Tensor]) -> Iterator[None]:
    """Keep the first tensor of every module's first output."""

    def left(module: nn.Module, input: Any, output: Any, name: str) -> None:
        tensor = nest.first(output)
        if tensor is not None and tensor.dim() and name not in into:
            into[name] = tensor.detach().clone()

    with hooked(model, lambda *_: None, left):
        yield
