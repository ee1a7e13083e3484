"""fx's tracer with an example passing along: every stand-in for a tensor also carries the example's value.

That answers what fx alone cannot: how long a shape is, which branch a size takes. Each such answer becomes an operation
that raises if another input would have answered otherwise (`expect`). Running each operation on the example's values
also shows what it writes into.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import rnn
from torch.utils import checkpoint

from ..data import nest
from ..data.process_state import drawn_from, generators, python_generators_kept
from .program import Mould, tensors
from .torch_internals import VERSIONS

# Functions that fx would call at once because they see no tensor (their sizes may be stand-ins all the same), or look
# into. Always recorded: random ones must draw in every step, fresh tensors may be written into.
FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros")
PACKERS = ("pack_padded_sequence", "pad_packed_sequence", "pad_sequence")
STACKS = (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)  # of torch's own modules, those worth opening
UNKNOWN = "its forward hands on a value of type {}; use tensors in tuples, lists, dictionaries or dataclasses"
Run = Callable[[Callable[..., Any], Any], Any]  # how a model is called with its input
READS_CONTENTS = {"item", "tolist", "numpy", "equal", "allclose", "is_nonzero"}


def expect(found: Any, traced: Any) -> None:
    """An operation that stands where the forward branched on, or counted with, something the example decided."""
    if found != traced:
        raise RuntimeError(
            f"the model was cut for inputs where its forward finds {traced!r} but found {found!r}; "
            "put what depends on it into a module of its own"
        )


class StandIn(fx.Proxy):
    """A stand-in that knows the example's value, so that lengths, numbers and attributes can be asked for."""

    tracer: Tracer

    def __getattr__(self, name: str) -> Any:
        if callable(getattr(self.tracer.values[self.node], name)):
            return super().__getattr__(name)  # a method: recorded when it is called
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __len__(self) -> int:
        return self.tracer.length(self)

    def __iter__(self) -> Iterator[Any]:
        return self.tracer.iter(self)

    def __index__(self) -> int:
        return operator.index(self.tracer.decide(self))

    def __int__(self) -> int:
        return int(self.tracer.decide(self))

    def __float__(self) -> float:
        return float(self.tracer.decide(self))


def _in_place(name: str) -> Callable[[StandIn, Any], Any]:
    """`x += y` and the like: a tensor of the model is written; between operations a result of its own will do."""

    def write(self: StandIn, other: Any) -> Any:
        found = self.tracer.values[self.node]
        of_model = any(found is tensor for tensor in self.tracer.owned.values())
        function = getattr(operator, f"i{name}" if of_model else name)
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return write


for _name in ("add", "sub", "mul", "truediv"):
    setattr(StandIn, f"__i{_name}__", _in_place(_name))


class Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # so that `self.positions[:, : x.size(1)]` is recorded

    def __init__(self, model: nn.Module, example: Any, hidden: dict[str, str], run: Run):
        self.recorded = [(torch, name) for name in FACTORIES] + [(rnn, name) for name in PACKERS]
        super().__init__(autowrap_functions=tuple(getattr(place, name) for place, name in self.recorded))
        self.model, self.example, self.hidden, self.run = model, example, hidden, run
        self.values: dict[fx.Node, Any] = {}
        self.contents: set[fx.Node] = set()  # numbers read out of tensors
        self.decided: set[fx.Node] = set()
        self.made: dict[int, fx.Node] = {}  # storage -> the node that made it
        self.mutations: list[tuple[fx.Node, fx.Node]] = []
        self.written: set[str] = set()
        self.owned = dict(tensors(model))  # as they are now: `self.steps += 1` leaves a stand-in in the model
        self.owners = {
            tensor.untyped_storage().data_ptr(): name
            for name, tensor in reversed(self.owned.items())
            if tensor.layout == torch.strided and tensor.numel()
        }
        self.known = set(model.modules())
        self.failed: str | None = None
        self.evaluating = False
        self.thread = threading.get_ident()
        self.ambient = _autocast()
        self.version = VERSIONS.found  # looked for now: while a model is traced, what its trial calls is patched

    # what fx calls while it traces

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """One stand-in for each tensor of the example, in its nest; what is no tensor stays what it is in the example."""
        number = itertools.count()

        def stand_in(leaf: Tensor) -> fx.Proxy:
            made = super(Tracer, self).create_proxy("placeholder", f"input_{next(number)}", (), {})
            self._remember(made.node, leaf)
            return made

        def forward(root: nn.Module, input: Any) -> Any:
            return self.run(partial(root_fn, root), input)

        return forward, [self.root, nest.each(self.example, stand_in)]

    def create_arg(self, a: Any) -> Any:
        """What an operation may be handed: nests of the user's own types are made, as such, by one of their own."""
        inner = nest.children(a)
        if inner is not None and not isinstance(a, tuple | list | slice) and type(a) is not dict:
            return self.create_proxy("call_function", Mould(a), tuple(inner), {}).node
        try:
            return super().create_arg(a)
        except NotImplementedError as problem:
            raise RuntimeError(UNKNOWN.format(type(a).__name__)) from problem

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.hidden:
            return True
        return super().is_leaf_module(m, module_qualified_name) and not isinstance(m, STACKS)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        another_name = m is not self.root and m._modules is self.root._modules  # of the root: it has the same parts
        if self._aside() or another_name:
            return forward(*args, **kwargs)
        if m not in self.known:  # made by the forward itself: `nn.CrossEntropyLoss()(logits, labels)`
            return forward(*args, **kwargs)
        before = generators()
        try:
            result = super().call_module(m, forward, args, kwargs)
            refuse_draws(before)
            return result
        except Exception:
            self.failed = self.failed or self.path_of_module(m)
            raise

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._aside() else super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return StandIn(node, self)

    def create_proxy(self, kind: str, *args: Any, **kwargs: Any) -> Any:
        """A stand-in, but for None: that something is left out is a fact that forwards ask for."""
        made = super().create_proxy(kind, *args, **kwargs)
        return None if kind.startswith("call_") and self.values[made.node] is None else made

    def create_node(self, kind: str, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(kind, *args, **kwargs)
        node.meta["grad"] = torch.is_grad_enabled()
        if _autocast() != self.ambient:
            raise RuntimeError("its forward switches autocast on or off")
        if kind not in ("placeholder", "output"):
            self._evaluate(node)
        return node

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.decide(obj))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return iter([obj[index] for index in range(self.length(obj))])  # type: ignore[index]

    def keys(self, obj: fx.Proxy) -> Any:
        return self.values[obj.node].keys()

    # the example's values

    def length(self, stand_in: fx.Proxy) -> int:
        value = self.values[stand_in.node]
        if isinstance(value, Tensor):
            return operator.index(stand_in.shape[0])  # type: ignore[index]
        return len(value)  # how long a tuple or a shape is does not depend on the input

    def decide(self, stand_in: fx.Proxy) -> Any:
        """The example's answer to a question about sizes, recorded so that other inputs must answer the same."""
        node = stand_in.node
        if isinstance(self.values[node], Tensor) or node in self.contents:
            raise RuntimeError("its forward branches on, or counts with, the contents of a tensor")
        if node not in self.decided:
            self.decided.add(node)
            self.create_proxy("call_function", expect, (stand_in, self.values[node]), {})
        return self.values[node]

    def _evaluate(self, node: fx.Node) -> None:
        """Run the node on the example's values and note what it writes into."""
        called = self._named_by(node)
        if node.op == "get_attr":
            self.values[node] = called
            return
        args, kwargs = nest.over(
            (node.args, node.kwargs), lambda item: self.values[item] if isinstance(item, fx.Node) else item
        )
        seen = {id(tensor): tensor for tensor in nest.leaves((args, kwargs))}
        version = self.version
        if version is None:
            raise RuntimeError(f"torch {torch.__version__} does not say whether a tensor was written into")
        versions = {key: version(tensor) for key, tensor in seen.items()}
        own = dict(called.named_buffers()) if isinstance(called, nn.Module) else {}
        before = {name: tensor.clone() for name, tensor in own.items()}  # BatchNorm writes without a new version
        with self._standing_aside(), torch.no_grad():
            if node.op == "call_method":
                result = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                result = called(*args, **kwargs)
        self._remember(node, result)
        changed = [name for name, tensor in own.items() if not torch.equal(tensor, before[name])]
        self.written |= {f"{node.target}.{name}" for name in changed}
        for key, tensor in seen.items():
            if version(tensor) != versions[key]:
                self._written(tensor, node)
        reads = [item for item in node.all_input_nodes if item in self.contents]
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if (name in READS_CONTENTS and node.op != "call_module") or (reads and not isinstance(result, Tensor)):
            self.contents.add(node)

    def _named_by(self, node: fx.Node) -> Any:
        """The function, module or tensor that a node names."""
        if node.op == "call_method" or not isinstance(node.target, str):
            return node.target
        with self._standing_aside():
            return operator.attrgetter(node.target)(self.root)

    def _written(self, tensor: Tensor, by: fx.Node) -> None:
        """By storage: `parameter.data` and views have tensors of their own."""
        place = tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
        if place in self.owners:
            self.written.add(self.owners[place])
        elif place in self.made:
            self.mutations.append((self.made[place], by))

    def _remember(self, node: fx.Node, value: Any) -> None:
        self.values[node] = value
        for tensor in nest.leaves(value):
            if tensor.numel() and tensor.layout == torch.strided:
                self.made.setdefault(tensor.untyped_storage().data_ptr(), node)

    def _aside(self) -> bool:
        """Not the traced forward: the example's own passing, or another thread (fx patches nn.Module for all)."""
        return self.evaluating or threading.get_ident() != self.thread

    @contextmanager
    def _standing_aside(self) -> Iterator[None]:
        self.evaluating = True
        try:
            with python_generators_kept():  # what is called whole may draw: it does so in every step
                yield
        finally:
            self.evaluating = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Patch, while tracing, what fx would call at once or look into.

        Nothing simpler reaches these functions: before a TorchFunctionMode, or the stand-in itself, hears of a call with
        a stand-in for a size, torch has asked it for its number. fx patches nn.Module in the same way.
        """
        # Not yet bound to a class: written in Python in some versions of torch, in C in others.
        apply = inspect.getattr_static(torch.autograd.Function, "apply").__get__

        def recorded(original: Callable[..., Any]) -> Callable[..., Any]:
            def record(*args: Any, **kwargs: Any) -> Any:
                if self._aside():
                    return original(*args, **kwargs)
                return self.create_proxy("call_function", original, args, kwargs)

            return record

        def apply_recorded(kind: Any, *args: Any, **kwargs: Any) -> Any:
            if kind is checkpoint.CheckpointFunction:  # call what it wraps: a stage holds its own activations
                function, _, *inputs = args
                return function(*inputs)
            return recorded(apply(None, kind))(*args, **kwargs)

        limits_of = torch.finfo  # in C: it takes no stand-in for a type

        def limits_recorded(*kind: Any) -> Any:
            stands_in = any(isinstance(item, StandIn) for item in kind)
            return recorded(limits_of)(*kind) if stands_in else limits_of(*kind)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(torch, "finfo", limits_recorded))
            for place, name in self.recorded:
                stack.enter_context(mock.patch.object(place, name, recorded(getattr(place, name))))
            stack.enter_context(mock.patch.object(torch.autograd.Function, "apply", classmethod(apply_recorded)))
            yield


def _autocast() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))


def refuse_draws(before: dict[str, Any]) -> None:
    """What Python's and numpy's generators draw while tracing would be the same in every step of a cut model."""
    if drawn_from(before, generators()) - {"torch"}:
        raise RuntimeError("its forward draws numbers that are no tensors (random, numpy.random)")
