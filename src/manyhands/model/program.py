"""A model as a program: the list of steps its forward takes, which may be cut between any two of them.

Values are numbered: first the tensors of the input, then the result of each step. A step reads values and tensors of
the model (parameters, buffers). Modules are called whole and by their own names, so train and eval mode, hooks and
moves between devices work in a piece of the program as they do in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..data import nest


@dataclass(frozen=True, slots=True)
class Value(nest.Leaf):
    """Stands, in the arguments of a step, for an input or for the result of an earlier step."""

    number: int


@dataclass(frozen=True, slots=True)
class Attribute(nest.Leaf):
    """Stands, in the arguments of a step, for a tensor of the model."""

    name: str


@dataclass(frozen=True)
class Step:
    """One call: of a module of the model, of a function, or of a tensor's method."""

    name: str
    kind: str  # module | function | method
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool = True  # False where the model's forward runs it under no_grad

    def reads(self) -> set[int]:
        """The numbers of the values it uses."""
        return {item.number for item in held((self.args, self.kwargs)) if isinstance(item, Value)}

    @cached_property
    def input(self) -> int | None:
        """The number of the one value that a module is called with, as most are; None where there is more to it."""
        simple = self.kind == "module" and self.grad and len(self.args) == 1 and not self.kwargs
        return self.args[0].number if simple and isinstance(self.args[0], Value) else None

    def attributes(self) -> set[str]:
        """The tensors of the model it uses by itself; a module it calls has more."""
        return {item.name for item in held((self.args, self.kwargs)) if isinstance(item, Attribute)}


@dataclass(frozen=True, slots=True)
class Form(nest.Leaf):
    """What a tensor looked like when the example passed."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class Stuck(nest.Leaf):
    """Stands for something no other rank could be handed, such as a device or an open file."""

    kind: str


def form(value: Any) -> Any:
    """The nest `value` with its tensors as Form, its numbers as their types, and what cannot travel as Stuck."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return Form(tuple(leaf.shape), leaf.dtype)
        if isinstance(leaf, bool | int | float):
            return type(leaf)
        return leaf if leaf is None or isinstance(leaf, str) else Stuck(type(leaf).__name__)

    # a packed sequence keeps one of its tensors on the CPU whatever the device, so it does not travel
    return Stuck(type(value).__name__) if isinstance(value, PackedSequence) else _formed(value, of)


def _formed(value: Any, of: Callable[[Any], Any]) -> Any:
    inner = nest.children(value)
    return of(value) if inner is None else nest.rebuilt(value, [form(item) for item in inner])


class Mould:
    """Makes a nest of the user's own type (a dataclass, a mapping) around what is in it; a step of its own."""

    def __init__(self, like: Any):
        self.like = nest.over(like, lambda _: None)
        self.__name__ = type(like).__name__.lower()  # what fx names the step by
        self.__module__ = type(like).__module__

    def __call__(self, *items: Any) -> Any:
        return nest.rebuilt(self.like, list(items))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mould) and type(self.like) is type(other.like)

    def __hash__(self) -> int:
        return hash(type(self.like))


@dataclass(frozen=True)
class Program:
    """The steps of one model, and what its values looked like for the example it was traced with."""

    inputs: Any  # the nest the model takes, a Value for each tensor
    steps: tuple[Step, ...]
    output: Any  # the nest the model returns, a Value for each result
    forms: tuple[Any, ...]  # of each value
    constants: Mapping[str, Tensor] = field(default_factory=dict)  # tensors the forward refers to but the model lacks
    mutations: tuple[tuple[int, int], ...] = ()  # (value, step): the step writes into the value
    written: frozenset[str] = frozenset()  # tensors of the model that the forward writes (BatchNorm's statistics)
    hidden: Mapping[str, str] = field(default_factory=dict)  # modules taken whole, and why where they had to be

    @property
    def first(self) -> int:
        """The number of the first step's value: those of the inputs come before."""
        return len(self.forms) - len(self.steps)

    @cached_property
    def computes(self) -> list[bool]:
        """For each step whether it makes tensors; others ask for sizes, check them or take tuples apart."""
        return [
            step.target not in (getitem, getattr)
            and not isinstance(step.target, Mould)
            and any(isinstance(leaf, Form) for leaf in nest.items(made))
            for step, made in zip(self.steps, self.forms[self.first :], strict=True)
        ]

    @cached_property
    def readers(self) -> dict[int, int]:
        """For each value the last step that reads it; len(steps) stands for the output."""
        last = {number: index for index, step in enumerate(self.steps) for number in step.reads()}
        last.update({item.number: len(self.steps) for item in held(self.output) if isinstance(item, Value)})
        return last

    def alive(self, position: int) -> list[int]:
        """The values made before the step at `position` that are read at or after it."""
        made = self.first + position
        return sorted(value for value, reader in self.readers.items() if value < made and reader >= position)


def held(args: Any) -> Iterator[Any]:
    """Everything the arguments of a step hold, in order."""
    if isinstance(args, tuple | list):
        for item in args:
            yield from held(item)
    elif isinstance(args, dict):
        yield from held(list(args.values()))
    elif isinstance(args, slice):
        yield from held([args.start, args.stop, args.step])
    else:
        yield args


def replace(args: Any, fill: Callable[[Any], Any]) -> Any:
    """The arguments of a step with `fill` applied to everything they hold."""
    if isinstance(args, tuple):
        items = [replace(item, fill) for item in args]
        return type(args)(*items) if hasattr(args, "_fields") else tuple(items)
    if isinstance(args, list):
        return [replace(item, fill) for item in args]
    if isinstance(args, dict):
        return {key: replace(item, fill) for key, item in args.items()}
    if isinstance(args, slice):
        return slice(replace(args.start, fill), replace(args.stop, fill), replace(args.step, fill))
    return fill(args)


def call(step: Step, root: nn.Module, values: Mapping[int, Any]) -> Any:
    """The result of a step, where `root` has the model's modules and tensors under their names."""
    if step.input is not None:
        return attrgetter(step.target)(root)(values[step.input])

    def fill(item: Any) -> Any:
        if isinstance(item, Value):
            return values[item.number]
        return attrgetter(item.name)(root) if isinstance(item, Attribute) else item

    args, kwargs = replace(step.args, fill), replace(step.kwargs, fill)
    if step.kind == "module":
        function = attrgetter(step.target)(root)
    elif step.kind == "method":
        function, args = getattr(args[0], step.target), args[1:]
    else:
        function = step.target
    if step.grad or not torch.is_grad_enabled():
        return function(*args, **kwargs)
    with torch.no_grad():
        return function(*args, **kwargs)


@dataclass(frozen=True)
class Wire:
    """A value on its way to the next stage: its number and form. It travels as flat tensors, numbers among them."""

    number: int
    form: Any

    def pack(self, value: Any) -> list[Tensor]:
        if isinstance(self.form, Form):
            return [value]
        forms, leaves = nest.items(self.form), nest.items(value)
        travels = [leaf for leaf, form in zip(leaves, forms, strict=True) if isinstance(form, Form | type)]
        return [leaf if isinstance(leaf, Tensor) else torch.tensor(leaf) for leaf in travels]

    def unpack(self, tensors: Iterator[Tensor]) -> Any:
        if isinstance(self.form, Form):
            return next(tensors)

        def take(form: Any) -> Any:
            if isinstance(form, Form):
                return next(tensors)
            return next(tensors).item() if isinstance(form, type) else form

        return nest.over(self.form, take)

    @property
    def tensors(self) -> list[Form]:
        """What travels, for the example: one entry for each tensor, a number being one of its own."""
        kinds = {int: torch.int64, float: torch.get_default_dtype(), bool: torch.bool}
        forms = [leaf for leaf in nest.items(self.form) if isinstance(leaf, Form | type)]
        return [leaf if isinstance(leaf, Form) else Form((), kinds[leaf]) for leaf in forms]

    @property
    def stuck(self) -> bool:
        return any(isinstance(leaf, Stuck) for leaf in nest.items(self.form))


def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer of a module under every name it has."""
    return chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
