"""A model as a program: the list of operations its forward takes, which may be cut between any two of them.

Values are numbered: first the tensors of the input, then the result of each operation. An operation reads values and
tensors of the model (parameters, buffers). Modules are called whole and by their own names, so train and eval mode,
hooks and moves between devices work in a piece of the program as they do in the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """Stands, in the arguments of an operation, for an input or for the result of an earlier operation."""

    number: int


@dataclass(frozen=True, slots=True)
class Attribute(nest.Leaf):
    """Stands, in the arguments of an operation, for a tensor of the model."""

    name: str


@dataclass(frozen=True)
class Operation:
    """One call: of a module of the model, of a function, or of a tensor's method."""

    name: str
    kind: str  # module | function | method
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool = True  # False where the model's forward runs it under no_grad

    def reads(self) -> set[int]:
        """The numbers of the values it uses."""
        return {item.number for item in nest.items((self.args, self.kwargs)) if isinstance(item, Value)}

    def run(self, root: nn.Module, values: Mapping[int, Any]) -> Any:
        """Its result, where `root` has the model's modules and tensors under their names."""

        def fill(item: Any) -> Any:
            if isinstance(item, Value):
                return values[item.number]
            return attrgetter(item.name)(root) if isinstance(item, Attribute) else item

        args, kwargs = nest.over(self.args, fill), nest.over(self.kwargs, fill)
        if self.kind == "module":
            function = attrgetter(self.target)(root)
        elif self.kind == "method":
            function, args = getattr(args[0], self.target), args[1:]
        else:
            function = self.target
        if self.grad or not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    def attributes(self) -> set[str]:
        """The tensors of the model it uses by itself; a module it calls has more."""
        return {item.name for item in nest.items((self.args, self.kwargs)) if isinstance(item, Attribute)}

    def uses(self, model: nn.Module) -> set[str]:
        """The names of all parameters and buffers it uses, those of a module it calls too."""
        called = attrgetter(self.target)(model) if self.kind == "module" else nn.Module()
        return self.attributes() | {f"{self.target}.{name}" for name, _ in tensors(called)}


@dataclass(frozen=True, slots=True)
class Form(nest.Leaf):
    """What a tensor looked like when the example passed."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    dense: bool = True  # a sparse one stays within its stage

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class Extent(nest.Leaf):
    """What a shape (torch.Size) looked like: how many dimensions it has."""

    dimensions: int


@dataclass(frozen=True, slots=True)
class Stuck(nest.Leaf):
    """Stands for something no other rank could be handed, such as a device or an open file."""

    kind: str


def form(value: Any) -> Any:
    """The nest `value` with its tensors as Form, its numbers as their types, and what cannot travel as Stuck."""
    if isinstance(value, PackedSequence):  # it keeps one of its tensors on the CPU whatever the device
        return Stuck(type(value).__name__)
    inner = nest.children(value)
    if inner is not None:
        return nest.rebuilt(value, [form(item) for item in inner])
    if isinstance(value, Tensor):
        return Form(tuple(value.shape), value.dtype, value.layout == torch.strided)
    if isinstance(value, torch.Size):
        return Extent(len(value))
    if isinstance(value, bool | int | float):
        return type(value)
    return value if value is None or isinstance(value, str) else Stuck(type(value).__name__)


class Mould:
    """Makes a nest of the user's own type (a dataclass, a mapping) around what is in it; an operation of its own."""

    def __init__(self, like: Any):
        self.like = nest.over(like, lambda _: None)
        self.__name__ = type(like).__name__.lower()  # what fx names the operation by
        self.__module__ = type(like).__module__

    def __call__(self, *items: Any) -> Any:
        return nest.rebuilt(self.like, list(items))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mould) and type(self.like) is type(other.like)

    def __hash__(self) -> int:
        return hash(type(self.like))


@dataclass(frozen=True)
class Program:
    """The operations of one model, and what its values looked like for the example it was traced with."""

    operations: tuple[Operation, ...]
    output: Any  # the nest the model returns, a Value for each result
    forms: tuple[Any, ...]  # of each value
    constants: Mapping[str, Tensor] = field(default_factory=dict)  # tensors the forward refers to but the model lacks
    mutations: tuple[tuple[int, int], ...] = ()  # (value, operation): the operation writes into the value
    written: frozenset[str] = frozenset()  # tensors of the model that the forward writes (BatchNorm's statistics)
    hidden: Mapping[str, str] = field(default_factory=dict)  # modules taken whole, and why where they had to be

    @property
    def first(self) -> int:
        """The number of the first operation's value: those of the inputs come before."""
        return len(self.forms) - len(self.operations)

    @cached_property
    def computes(self) -> list[bool]:
        """For each operation whether it makes tensors; others ask for sizes, check them or take tuples apart."""
        return [
            operation.target not in (getitem, getattr)
            and not isinstance(operation.target, Mould)
            and any(isinstance(leaf, Form) for leaf in nest.items(made))
            for operation, made in zip(self.operations, self.forms[self.first :], strict=True)
        ]

    @property
    def layer_names(self) -> list[str]:
        """The names of the operations that compute."""
        return [item.name for item, computes in zip(self.operations, self.computes, strict=True) if computes]

    @cached_property
    def readers(self) -> dict[int, int]:
        """For each value the last operation that reads it; len(operations) stands for the output."""
        last = {number: index for index, operation in enumerate(self.operations) for number in operation.reads()}
        last.update({item.number: len(self.operations) for item in nest.items(self.output) if isinstance(item, Value)})
        return last

    def alive(self, position: int) -> list[int]:
        """The values made before the operation at `position` that are read at or after it."""
        made = self.first + position
        return sorted(value for value, reader in self.readers.items() if value < made and reader >= position)


@dataclass(frozen=True)
class Wire:
    """A value on its way to the next stage: its number and form. It travels as flat tensors, numbers among them."""

    number: int
    form: Any

    def pack(self, value: Any) -> list[Tensor]:
        if isinstance(self.form, Form):
            return [value]
        pairs = zip(nest.items(value), nest.items(self.form), strict=True)
        travels = [leaf for leaf, form in pairs if isinstance(form, Form | Extent | type)]
        return [leaf if isinstance(leaf, Tensor) else torch.tensor(leaf) for leaf in travels]

    def unpack(self, tensors: Iterator[Tensor]) -> Any:
        if isinstance(self.form, Form):
            return next(tensors)

        def take(form: Any) -> Any:
            if isinstance(form, Form):
                return next(tensors)
            if isinstance(form, Extent):
                return torch.Size(next(tensors).tolist())
            return next(tensors).item() if isinstance(form, type) else form

        return nest.over(self.form, take)

    @property
    def tensors(self) -> list[Form]:
        """What travels, for the example: one entry for each tensor, a number or a shape being one of its own."""
        return [_as_tensor(leaf) for leaf in nest.items(self.form) if isinstance(leaf, Form | Extent | type)]

    @property
    def stuck(self) -> bool:
        return any(
            isinstance(leaf, Stuck) or (isinstance(leaf, Form) and not leaf.dense) for leaf in nest.items(self.form)
        )


def _as_tensor(leaf: Form | Extent | type) -> Form:
    if isinstance(leaf, Form):
        return leaf
    if isinstance(leaf, Extent):
        return Form((leaf.dimensions,), torch.int64)
    return Form((), {int: torch.int64, float: torch.get_default_dtype(), bool: torch.bool}[leaf])


def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer of a module under every name it has."""
    return chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
