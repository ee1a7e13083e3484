"""From a model to its program, by torch.fx, with an example passing along.

fx runs the model's forward with stand-ins for tensors and writes down what they are asked to do. Here every stand-in
also carries the example's value, which answers what fx alone cannot: how long a shape is, which branch a size takes.
Each such answer becomes a step that raises if another input would have answered otherwise, so nothing is baked in
silently. A branch on a tensor's contents cannot be answered; the module it happens in is then taken whole, and only
where that is the model itself is there nothing to cut.
"""

from __future__ import annotations

import inspect
import operator
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import rnn
from torch.utils import checkpoint

from ..data import nest
from .program import Attribute, Mould, Program, Step, Stuck, Value, form, replace, tensors
from .torch_internals import VERSIONS

# Functions that fx would call at once because they see no tensor (their sizes may be stand-ins all the same), or look
# into. Always recorded: random ones must draw in every step, fresh tensors may be written into.
FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros")
PACKERS = ("pack_padded_sequence", "pad_packed_sequence", "pad_sequence")
STACKS = (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)  # of torch's own modules, those worth opening
_UNKNOWN = "its forward hands on a value of type {}; use tensors in tuples, lists, dictionaries or dataclasses"
READS_CONTENTS = {"item", "tolist", "numpy", "equal", "allclose", "is_nonzero"}


class CannotTrace(Exception):
    """The model's own forward, or that of `module`, cannot be written down as steps."""

    def __init__(self, module: str, reason: str):
        super().__init__(reason)
        self.module, self.reason = module, reason


def trace(model: nn.Module, example: Any, whole: frozenset[str] = frozenset()) -> Program:
    """The program of `model` for inputs like `example`; modules named in `whole` are not opened.

    Runs the model once and may leave traces in it (BatchNorm's statistics, tensors fx adds): hand it a copy.
    """
    _ = VERSIONS.found  # tried before tracing: while a model is traced, what the trial calls is patched
    hidden: dict[str, str] = dict.fromkeys(whole, "")
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    while True:
        tracer = _Tracer(model, example, hidden)
        try:
            return tracer.program(known)
        except Exception as problem:
            place, reason = tracer.failed or "", _reason(problem)
            while place in hidden and place:
                place = place.rpartition(".")[0]
            if not place:
                raise CannotTrace(title(model, tracer.failed or ""), reason) from problem
            hidden[place] = reason


def expect(found: Any, traced: Any) -> None:
    """A step that stands where the forward branched on, or counted with, something the example decided."""
    if found != traced:
        raise RuntimeError(
            f"the model was cut for inputs where its forward finds {traced!r} but found {found!r}; "
            "put what depends on it into a module of its own"
        )


class _StandIn(fx.Proxy):
    """A stand-in that knows the example's value, so that lengths, numbers and attributes can be asked for."""

    tracer: _Tracer

    def __getattr__(self, name: str) -> Any:
        if callable(getattr(self.tracer.value(self.node), name)):
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


def _in_place(name: str) -> Callable[[_StandIn, Any], Any]:
    """`x += y` and the like: a tensor of the model is written; between steps a result of its own will do."""

    def write(self: _StandIn, other: Any) -> Any:
        found = self.tracer.value(self.node)
        of_model = any(found is tensor for tensor in self.tracer.owned.values())
        function = getattr(operator, f"i{name}" if of_model else name)
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return write


for _name in ("add", "sub", "mul", "truediv"):
    setattr(_StandIn, f"__i{_name}__", _in_place(_name))


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # so that `self.positions[:, : x.size(1)]` is recorded

    def __init__(self, model: nn.Module, example: Any, hidden: dict[str, str]):
        self.recorded = [(torch, name) for name in FACTORIES] + [(rnn, name) for name in PACKERS]
        super().__init__(autowrap_functions=tuple(getattr(place, name) for place, name in self.recorded))
        self.model, self.example, self.hidden = model, example, hidden
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
        self.failed: str | None = None
        self.evaluating = False
        self.thread = threading.get_ident()
        self.ambient = _autocast()

    def program(self, known: set[int]) -> Program:
        """Trace the model and write its program down."""
        drawn = _python_randomness()
        with self._recording(), _unchecked():
            graph = self.trace(self.model)
        if _python_randomness() != drawn:
            raise RuntimeError("its forward draws numbers that are no tensors (random, numpy.random)")
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        output = next(node for node in graph.nodes if node.op == "output")
        calls = [node for node in graph.nodes if node.op.startswith("call_") and not self._idle(node)]
        number = {node: index for index, node in enumerate([*inputs, *calls])}
        names = {node: node.target for node in graph.nodes if node.op == "get_attr"}
        attributes = {name: self._attribute(name) for name in names.values()}
        for leaf in nest.items([form(self.values[node]) for node in output.all_input_nodes]):
            if isinstance(leaf, Stuck):
                raise RuntimeError(_UNKNOWN.format(leaf.kind))

        def refer(item: Any) -> Any:
            if not isinstance(item, fx.Node):
                return item
            return Attribute(names[item]) if item in names else Value(number[item])

        steps = [
            Step(
                self._name(node),
                node.op.removeprefix("call_"),
                node.target,
                replace(node.args, refer),
                replace(node.kwargs, refer),
                node.meta["grad"],
            )
            for node in calls
        ]
        leaves = iter(Value(index) for index in range(len(inputs)))
        constants = {name: tensor for name, tensor in attributes.items() if id(tensor) not in known}
        return Program(
            inputs=nest.over(self.example, lambda _: next(leaves)),
            steps=tuple(steps),
            output=replace(output.args[0], refer),
            forms=tuple(form(self.values[node]) for node in number),
            constants=constants,
            mutations=tuple((number[made], number[by] - len(inputs)) for made, by in self.mutations),
            written=frozenset(self.written),
            hidden=dict(self.hidden),
        )

    def _attribute(self, name: str) -> Tensor:
        """A tensor of the model, or one that fx has put there."""
        found = operator.attrgetter(name)(self.model)
        if isinstance(found, _StandIn):
            if self.values[found.node] is not self.owned.get(name):
                raise RuntimeError(f'its forward replaces its buffer "{name}" by another tensor; write into it instead')
            found = self.owned[name]
        if not isinstance(found, Tensor):
            raise RuntimeError(f'its forward hands on "{name}", which is of type {type(found).__name__}')
        return found

    def _idle(self, node: fx.Node) -> bool:
        """A question about a shape whose answer nobody used."""
        if node.op in ("call_module", "output") or node.target in (expect, operator.setitem):
            return False
        if any(isinstance(leaf, Tensor) for leaf in nest.items(self.values[node])):
            return False
        return all(self._idle(user) for user in node.users)

    def _name(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return str(node.target)
        scope = self.node_name_to_scope[node.name][0]
        return f"{scope}.{node.name}" if scope else node.name

    # what fx calls while it traces

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """One stand-in for each tensor of the example, in its nest; other arguments keep their defaults."""
        leaves = list(nest.items(self.example))
        stand_ins = [super(_Tracer, self).create_proxy("placeholder", f"input_{n}", (), {}) for n in range(len(leaves))]
        for stand_in, leaf in zip(stand_ins, leaves, strict=True):
            self._remember(stand_in.node, leaf)
        remaining = iter(stand_ins)
        return root_fn, [self.root, nest.over(self.example, lambda _: next(remaining))]

    def create_arg(self, a: Any) -> Any:
        """What a step may be handed: nests of the user's own types are made by a step of their own, as such."""
        inner = nest.children(a)
        if inner is not None and not isinstance(a, tuple | list) and type(a) is not dict:
            return self.create_proxy("call_function", Mould(a), tuple(inner), {}).node
        try:
            return super().create_arg(a)
        except NotImplementedError as problem:
            raise RuntimeError(_UNKNOWN.format(type(a).__name__)) from problem

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.hidden:
            return True
        return super().is_leaf_module(m, module_qualified_name) and not isinstance(m, STACKS)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._aside():
            return forward(*args, **kwargs)
        drawn = _python_randomness()
        try:
            result = super().call_module(m, forward, args, kwargs)
            if _python_randomness() != drawn:
                raise RuntimeError("its forward draws numbers that are no tensors (random, numpy.random)")
            return result
        except Exception:
            self.failed = self.failed or self.path_of_module(m)
            raise

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._aside() else super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _StandIn(node, self)

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
        return self.value(obj.node).keys()

    # the example's values

    def value(self, node: fx.Node) -> Any:
        return self.values[node]

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
        called = self._found(node)
        if node.op == "get_attr":
            self.values[node] = called
            return
        args, kwargs = (
            replace(part, lambda item: self.values.get(item, item) if isinstance(item, fx.Node) else item)
            for part in (node.args, node.kwargs)
        )
        seen = {id(leaf): leaf for leaf in nest.items((args, kwargs)) if isinstance(leaf, Tensor)}
        version = VERSIONS.found
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

    def _found(self, node: fx.Node) -> Any:
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
        for leaf in nest.items(value):
            if isinstance(leaf, Tensor) and leaf.numel():
                self.made.setdefault(leaf.untyped_storage().data_ptr(), node)

    def _aside(self) -> bool:
        """Not the traced forward: the example's own passing, or another thread (fx patches nn.Module for all)."""
        return self.evaluating or threading.get_ident() != self.thread

    @contextmanager
    def _standing_aside(self) -> Iterator[None]:
        self.evaluating = True
        python, numpys = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            self.evaluating = False
            random.setstate(python)  # what is called whole may draw: it does so in every step
            np.random.set_state(numpys)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Patch, while tracing, what fx would call at once or look into."""
        # Not yet bound to a class: written in Python in some versions of torch, in C in others.
        apply = inspect.getattr_static(torch.autograd.Function, "apply").__get__

        def recorded(original: Callable[..., Any]) -> Callable[..., Any]:
            def record(*args: Any, **kwargs: Any) -> Any:
                if self._aside():
                    return original(*args, **kwargs)
                return self.create_proxy("call_function", original, args, kwargs)

            return record

        def apply_recorded(kind: Any, *args: Any, **kwargs: Any) -> Any:
            if self._aside():
                return apply(None, kind)(*args, **kwargs)
            return self.create_proxy("call_function", apply(None, kind), args, kwargs)

        with ExitStack() as stack:
            for place, name in self.recorded:
                stack.enter_context(mock.patch.object(place, name, recorded(getattr(place, name))))
            stack.enter_context(mock.patch.object(torch.autograd.Function, "apply", classmethod(apply_recorded)))
            yield


@contextmanager
def _unchecked() -> Iterator[None]:
    """Call what reentrant checkpoints wrap: a stage holds the activations of its own steps."""

    def run(kind: Any, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)

    with mock.patch.object(checkpoint.CheckpointFunction, "apply", classmethod(run)):
        yield


def _autocast() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))


def _python_randomness() -> tuple[Any, ...]:
    """Where the generators of Python and numpy stand; what they draw would be the same in every step of a cut model."""
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), *state[2:]


def title(model: nn.Module, path: str) -> str:
    """`Gate (body.gate)` for a module in a model, `Net` for the model itself."""
    kind = type(operator.attrgetter(path)(model) if path else model).__name__
    return f"{kind} ({path})" if path else kind


def _reason(problem: Exception) -> str:
    """What went wrong, and the line of the user's code it went wrong at."""
    ours = (torch.__path__[0], __file__)
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if not frame.filename.startswith(ours)]
    text = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
    if not frames or frames[-1].filename.startswith("<"):
        return text
    where = frames[-1]
    return f"{text} ({where.filename.rpartition('/')[2]}:{where.lineno}: {where.line})"
