"""Which call fits a model: from the signature of its forward and the kind of input, or the reason why one does not."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..data import nest
from ..errors import BadInput, did_you_mean

CALLS = {"one": "model(input)", "args": "model(*input)", "kwargs": "model(**input)"}
Parameter = inspect.Parameter
POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
Example = Callable[[], tuple[Any, Any]]


def chosen_call(call: str | None, model: nn.Module, example: Example) -> str:
    """The call that was asked for, if it can be; else the one that fits. `example` is read only where it matters."""
    if call is None:
        return _call_for(model, example)
    _check_call(call, model, example)
    return call


def _call_for(model: nn.Module, example: Example) -> str:
    """By name where the input's keys are names of parameters, by place where forward asks for several, else as one."""
    found = signature(_forward(model))
    if found is None or [item.kind in POSITIONAL for item in found.parameters.values()] == [True]:
        return "one"
    try:
        input, _ = example()
    except Exception:  # refused by the probe, or named by a rank
        return "one"
    items = named(input)
    if items is not None and _fits(found, (), items):
        return "kwargs"
    if isinstance(items, Mapping) and not isinstance(input, tuple):
        if unknown := _unknown(found, items):
            raise BadInput(_about_unknown(model, unknown, items))
        return "one"
    places = [item for item in found.parameters.values() if item.kind in POSITIONAL and _asked_for(item)]
    several = len(places) > 1 or any(item.kind is Parameter.VAR_POSITIONAL for item in found.parameters.values())
    return "args" if several and isinstance(input, tuple | list) else "one"


def _check_call(call: str, model: nn.Module, example: Example) -> None:
    """Refuse a call that this model, or this kind of input, cannot have."""
    if call not in CALLS:
        raise BadInput(f'call must be "one", "args" or "kwargs" (found {call!r}){did_you_mean(call, CALLS)}')
    found = signature(_forward(model))
    try:
        input, _ = example()
    except Exception:  # refused by the probe, or named by a rank
        return
    kind = type(input).__name__
    if call == "kwargs" and named(input) is None:
        raise BadInput(f'call="kwargs" needs inputs with names: a mapping, dataclass or named tuple (found {kind})')
    if call == "args" and (isinstance(input, Mapping) or nest.children(input) is None):
        raise BadInput(f'call="args" needs inputs in order: a tuple or list (found {kind})')
    if found is None:
        return
    given: tuple[tuple[Any, ...], Mapping[str, Any]] = {
        "one": ((input,), {}),
        "args": (tuple(nest.children(input) or ()), {}),
        "kwargs": ((), named(input) or {}),
    }[call]
    if not _fits(found, *given):
        items = named(input)
        if call == "kwargs" and items is not None and (unknown := _unknown(found, items)):
            raise BadInput(_about_unknown(model, unknown, items))
        raise BadInput(
            f'call="{call}" means {CALLS[call]}, which {type(model).__name__}.forward{_short(found)} does not take '
            f"({_why_not(found, *given)}; the input is {_described(input)})"
        )


def refuse_wrong_call(call: str, attempt: Callable[[str], Any]) -> None:
    """Of a model that failed: refuse its call where another one works. `attempt` tries one on a copy."""

    def failure(call: str) -> Exception | None:
        try:
            attempt(call)
        except Exception as problem:
            return problem
        return None

    problem = failure(call)
    if problem is None:
        return
    for other in CALLS:
        if other != call and failure(other) is None:
            reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
            raise BadInput(
                f"the model fails when it is called as {CALLS[call]} ({reason}) and works as {CALLS[other]}; "
                f'set call="{other}"'
            )


def named(input: Any) -> Mapping[str, Any] | None:
    """An input whose parts have names, as a mapping; None where they have none."""
    if isinstance(input, Mapping):
        return input
    if isinstance(input, tuple) and hasattr(input, "_fields"):
        return dict(zip(input._fields, input, strict=True))
    if dataclasses.is_dataclass(input) and not isinstance(input, type):
        return {field.name: getattr(input, field.name) for field in dataclasses.fields(input)}
    return None


def takes_output_alone(loss: Callable[..., Any]) -> bool:
    """Whether a loss can be given the output only; one that cannot be given output and target either is refused."""
    found = signature(_forward(loss) if isinstance(loss, nn.Module) else loss)
    if found is None or any(item.kind is Parameter.VAR_POSITIONAL for item in found.parameters.values()):
        return False
    places = [item for item in found.parameters.values() if item.kind in POSITIONAL]
    required = [item for item in found.parameters.values() if _asked_for(item)]
    if not places or len(required) > 2:
        raise BadInput(
            f"task.loss is called as loss(output, target), or loss(output) where it takes one argument, "
            f"which {_short(found)} does not allow; bind the others with functools.partial"
        )
    return len(places) == 1


def signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """What a function takes; of scripted ones from their schema; None where nobody knows."""
    schema = getattr(function, "schema", None)
    if isinstance(schema, torch.FunctionSchema):
        return inspect.Signature([_from_schema(item) for item in schema.arguments if item.name != "self"])
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _from_schema(item: Any) -> Parameter:
    kind = Parameter.KEYWORD_ONLY if item.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD
    default = item.default_value if item.has_default_value() else Parameter.empty
    return Parameter(item.name, kind, default=default)


def _forward(model: nn.Module) -> Callable[..., Any]:
    """The forward that the user wrote: torch.compile wraps a module into one that takes anything."""
    found: Callable[..., Any] = getattr(model, "_orig_mod", model).forward
    return found


def _asked_for(item: Parameter) -> bool:
    variable = item.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return item.default is Parameter.empty and not variable


def _fits(found: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return _why_not(found, args, kwargs) is None


def _why_not(found: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    try:
        found.bind(*args, **kwargs)
    except TypeError as problem:
        return str(problem)
    return None


def _unknown(found: inspect.Signature, items: Mapping[str, Any]) -> list[str]:
    """Keys that forward has no name for, where it plainly asks for the others by name."""
    if any(item.kind is Parameter.VAR_KEYWORD for item in found.parameters.values()):
        return []
    required = {item.name for item in found.parameters.values() if _asked_for(item)}
    known = set(found.parameters) & set(items)
    return [str(key) for key in items if key not in found.parameters] if known and required <= known else []


def _about_unknown(model: nn.Module, unknown: list[str], items: Mapping[str, Any]) -> str:
    which = ", ".join(f'"{key}"' for key in unknown)
    return (
        f"{type(model).__name__}.forward has no parameter for {which} of the input (keys: {', '.join(map(str, items))}); "
        'drop such keys in task.collate, or set call="one" to hand over the whole mapping'
    )


def _short(found: inspect.Signature) -> str:
    """A signature without annotations and defaults, not too long."""
    text = ", ".join(
        f"{'*' if item.kind is Parameter.VAR_POSITIONAL else '**' if item.kind is Parameter.VAR_KEYWORD else ''}{item.name}"
        + ("" if item.default is Parameter.empty else "=...")
        for item in found.parameters.values()
    )
    return f"({text})" if len(text) <= 120 else f"({text[:117]}...)"


def _described(input: Any) -> str:
    inner = nest.children(input)
    return type(input).__name__ if inner is None else f"a {type(input).__name__} of {len(inner)}"
