"""From a model to its program, by torch.fx (tracer.py), with an example passing along.

fx runs the model's forward with stand-ins for tensors and writes down what they are asked to do. A branch on a tensor's
contents cannot be answered; the module it happens in is then taken whole, and only where that is the model itself is
there nothing to cut.
"""

from __future__ import annotations

import operator
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..data import nest
from ..data.process_state import generators
from .program import Attribute, Operation, Program, Stuck, Value, form
from .tracer import UNKNOWN, Run, StandIn, Tracer, expect, refuse_draws


class CannotTrace(Exception):
    """The model's own forward, or that of `module`, cannot be written down as operations."""

    def __init__(self, module: str, reason: str):
        super().__init__(reason)
        self.module, self.reason = module, reason


def trace(model: nn.Module, example: Any, run: Run, whole: frozenset[str] = frozenset()) -> Program:
    """The program of `model` for inputs like `example`; modules named in `whole` are not opened.

    `run(model, input)` calls it; what that returns is the program's output.

    Runs the model once and may leave traces in it (BatchNorm's statistics, tensors fx adds): hand it a copy.
    """
    hidden: dict[str, str] = dict.fromkeys(whole, "")
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    while True:
        tracer = Tracer(model, example, hidden, run)
        try:
            return _program(tracer, known)
        except Exception as problem:
            place, reason = tracer.failed or "", _reason(problem)
            while place in hidden and place:
                place = place.rpartition(".")[0]
            if not place:
                raise CannotTrace(title(model, tracer.failed or ""), reason) from problem
            hidden[place] = reason


def _program(tracer: Tracer, known: set[int]) -> Program:
    """Trace the model and write its program down."""
    before = generators()
    with tracer.recording():
        graph = tracer.trace(tracer.model)
    refuse_draws(before)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output")
    calls = [node for node in graph.nodes if node.op.startswith("call_") and not _idle(tracer, node)]
    number = {node: index for index, node in enumerate([*inputs, *calls])}
    names = {node: node.target for node in graph.nodes if node.op == "get_attr"}
    attributes = {name: _attribute(tracer, name) for name in names.values()}
    for leaf in nest.items([form(tracer.values[node]) for node in output.all_input_nodes]):
        if isinstance(leaf, Stuck):
            raise RuntimeError(UNKNOWN.format(leaf.kind))

    def refer(item: Any) -> Any:
        if not isinstance(item, fx.Node):
            return item
        return Attribute(names[item]) if item in names else Value(number[item])

    operations = [
        Operation(
            _name(tracer, node),
            node.op.removeprefix("call_"),
            node.target,
            nest.over(node.args, refer),
            nest.over(node.kwargs, refer),
            node.meta["grad"],
        )
        for node in calls
    ]
    constants = {name: tensor for name, tensor in attributes.items() if id(tensor) not in known}
    return Program(
        operations=tuple(operations),
        output=nest.over(output.args[0], refer),
        forms=tuple(form(tracer.values[node]) for node in number),
        constants=constants,
        mutations=tuple((number[made], number[by] - len(inputs)) for made, by in tracer.mutations),
        written=frozenset(tracer.written),
        hidden=dict(tracer.hidden),
    )


def _attribute(tracer: Tracer, name: str) -> Tensor:
    """A tensor of the model, or one that fx has put there."""
    found = operator.attrgetter(name)(tracer.model)
    if isinstance(found, StandIn):
        if tracer.values[found.node] is not tracer.owned.get(name):
            raise RuntimeError(f'its forward replaces its buffer "{name}" by another tensor; write into it instead')
        found = tracer.owned[name]
    if not isinstance(found, Tensor):
        raise RuntimeError(f'its forward hands on "{name}", which is of type {type(found).__name__}')
    return found


def _idle(tracer: Tracer, node: fx.Node) -> bool:
    """A question about a shape whose answer nobody used."""
    if node.op in ("call_module", "output") or node.target in (expect, operator.setitem):
        return False
    return nest.first(tracer.values[node]) is None and all(_idle(tracer, user) for user in node.users)


def _name(tracer: Tracer, node: fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    scope = tracer.node_name_to_scope[node.name][0]
    return f"{scope}.{node.name}" if scope else node.name


def title(model: nn.Module, path: str) -> str:
    """`Gate (body.gate)` for a module in a model, `Net` for the model itself."""
    kind = type(operator.attrgetter(path)(model) if path else model).__name__
    return f"{kind} ({path})" if path else kind


def _reason(problem: Exception) -> str:
    """What went wrong, and the line of the user's code it went wrong at."""
    ours = (torch.__path__[0], str(Path(__file__).parent))
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if not frame.filename.startswith(ours)]
    text = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
    if not frames or frames[-1].filename.startswith("<"):
        return text
    where = frames[-1]
    return f"{text} ({where.filename.rpartition('/')[2]}:{where.lineno}: {where.line})"
