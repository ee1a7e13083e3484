"""What an optimizer is like, found by trying it on stand-ins: whether it can be used at all, and what it must see together.

A strategy may give each rank some of the parameters, or some rows of each. That comes to the same where every number is
updated by itself (SGD, Adam); it does not where an optimizer looks at the rows of a tensor together (Adafactor, Muon),
or at all tensors of the model.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..errors import BadInput
from ..task import Task

Named = Sequence[tuple[str, nn.Parameter]]
BY_NUMBER = (  # of torch's own: every number is updated by itself, and rounding stays rounding
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax,
    torch.optim.ASGD, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SparseAdam,
)  # fmt: skip


@dataclass(frozen=True)
class OptimizerTraits:
    """How an optimizer treats its parameters."""

    joins_rows: bool = False  # the update of a row depends on the other rows of its tensor
    joins_tensors: bool = False  # the update of a tensor depends on the other tensors
    amplifies: bool = False  # a difference in the last digits of a gradient grows a thousandfold


def stand_in(parameter: nn.Parameter, value: Tensor) -> nn.Parameter:
    """A parameter of another value with the attributes of this one: optimizers may be grouped by them."""
    made = nn.Parameter(value, requires_grad=parameter.requires_grad)
    vars(made).update(vars(parameter))
    return made


def check_optimizer(task: Task, trained: Named, total_updates: int) -> None:
    """Refuse, before anything starts, an optimizer or a schedule that cannot be used."""
    if not trained:
        raise BadInput(
            "the model has no parameters to train (none, or all frozen); the optimizer would have nothing to do"
        )
    lazy = next((name for name, parameter in trained if isinstance(parameter, nn.UninitializedParameter)), None)
    if lazy is not None:
        raise BadInput(
            f'the model\'s "{lazy}" has no shape yet (a lazy layer); run the model once over a sample before it is trained'
        )
    # of the right shapes, without their memory
    shaped = [(name, stand_in(p, torch.zeros((), dtype=p.dtype).expand(p.shape))) for name, p in trained]
    try:
        optimizer = task.optimizer(shaped)
    except Exception as problem:
        raise BadInput(
            f"task.optimizer failed on the model's named parameters: {type(problem).__name__}: {problem}"
        ) from problem
    if isinstance(optimizer, tuple | list):
        raise BadInput(
            f"task.optimizer made {len(optimizer)} optimizers, but one updates the whole model (training with several, as "
            "for a GAN, is not supported); for rates of their own give one optimizer with parameter groups"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInput(f"task.optimizer must make a torch.optim.Optimizer (found {type(optimizer).__name__})")
    if not any(group["params"] for group in optimizer.param_groups):
        raise BadInput("task.optimizer made an optimizer without parameters; hand it the named parameters it is given")
    if needed := _required(optimizer.step) or (type(optimizer) not in BY_NUMBER and _closure(task, trained)):
        raise BadInput(
            f"{type(optimizer).__name__}.step needs {' and '.join(needed)} (it computes the loss several times per update), which no "
            "strategy here can give it; use an optimizer that takes one gradient per update, such as SGD or Adam"
        )
    _check_schedule(task, optimizer, total_updates)


def _check_schedule(task: Task, optimizer: torch.optim.Optimizer, total_updates: int) -> None:
    if task.schedule is None:
        return
    try:
        schedule = task.schedule(optimizer, total_updates)
    except Exception as problem:
        raise BadInput(
            f"task.schedule failed for {total_updates} updates: {type(problem).__name__}: {problem}"
        ) from problem
    step = getattr(schedule, "step", None)
    if not callable(step):
        raise BadInput(f"task.schedule must make a learning rate scheduler (found {type(schedule).__name__})")
    if len(needed := _required(step)) > 1:
        raise BadInput(
            f"{type(schedule).__name__}.step needs {' and '.join(needed)}, but a schedule is given one figure at most: "
            "the loss of an epoch; use ReduceLROnPlateau, or one that follows the number of updates, such as OneCycleLR"
        )


def needs_figure(schedule: LRScheduler) -> bool:
    """Whether a schedule moves by a figure: it is stepped once per epoch with its loss, others once per update."""
    return isinstance(schedule, ReduceLROnPlateau) or bool(_required(schedule.step))


def _required(step: Callable[..., object]) -> list[str]:
    """The arguments that must be given."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return []
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [item.name for item in parameters if item.default is inspect.Parameter.empty and item.kind not in open_ended]


def _closure(task: Task, trained: Named) -> list[str]:
    """The argument that an optimizer asks for only when it is stepped (SAM and kin): it fails without, but not with it."""
    for arguments, needed in (((), []), ((lambda: torch.zeros(()),), ["closure"])):
        with contextlib.suppress(Exception):
            _Tried(task, trained, arguments=arguments)
            return needed
    return []  # it fails for another reason, which the ranks will name


# ---------------------------------------------------------------- how it treats its parameters


def optimizer_traits(task: Task, trained: Named) -> OptimizerTraits:
    """Found by trying small tensors of the parameters' names: whole, in halves, one by one, and slightly changed.

    An optimizer that cannot be tried so (it wants sparse gradients, say) counts as one that updates number by number.
    """
    try:
        if type(task.optimizer([(name, stand_in(p, _drawn(name, p)[0])) for name, p in trained])) in BY_NUMBER:
            return OptimizerTraits()
        whole = _Tried(task, trained)
        halves = [_Tried(task, trained, rows=rows).result for rows in (slice(0, 16), slice(16, 32))]
        singles = [_Tried(task, [one]).result[0] for one in trained] if len(trained) > 1 else whole.result
        changed = _Tried(task, trained, noise=1e-4).result
    except Exception:
        return OptimizerTraits()
    together = [torch.cat(pair) for pair in zip(*halves, strict=True)]
    return OptimizerTraits(
        joins_rows=_apart(whole.result, together) > 1e-4,
        joins_tensors=_apart(whole.result, singles) > 1e-4,
        amplifies=_apart(_moved(whole, whole.result), _moved(whole, changed)) > 1e-3,
    )


class _Tried:
    """A few updates of stand-ins with drawn gradients. What is drawn for a parameter depends on its place alone."""

    def __init__(
        self, task: Task, trained: Named, rows: slice = slice(None), noise: float = 0.0, arguments: tuple[Any, ...] = ()
    ):
        self.start = [_drawn(name, p)[0][rows] for name, p in trained]
        named = [(n, stand_in(p, value.clone())) for (n, p), value in zip(trained, self.start, strict=True)]
        optimizer = task.optimizer(named)
        for round_ in (1, 2):
            for name, parameter in named:
                own, spread = _drawn(name, parameter)[round_], _drawn(name, parameter)[0]
                parameter.grad = (own * (1 + noise * spread))[rows].clone()
            optimizer.step(*arguments)
        self.result = [parameter.detach() for _, parameter in named]


def _drawn(name: str, parameter: Tensor) -> list[Tensor]:
    """A start and two gradients for a stand-in of 32 rows and as many dimensions as the parameter."""
    seed = sum(number * ord(letter) for number, letter in enumerate(name, 1)) % 2**31
    generator = torch.Generator().manual_seed(seed)
    dims = max(parameter.dim(), 1)
    shape = [32] + [32 if dims == 2 else 3] * (dims - 1)
    return [torch.randn(shape, generator=generator) for _ in range(3)]


def _moved(tried: _Tried, result: Iterable[Tensor]) -> list[Tensor]:
    return [after - before for before, after in zip(tried.start, result, strict=True)]


def _apart(some: Iterable[Tensor], others: Iterable[Tensor]) -> float:
    pairs = list(zip(some, others, strict=True))
    return max((float((a - b).abs().max() / a.abs().max().clamp(min=1e-12)) for a, b in pairs), default=0.0)
