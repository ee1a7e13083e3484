"""What of a task cannot travel to a rank, and where in the task it sits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from ..task import Task
from ..world.launch.by_value import refuses_to_travel

DEEPEST = 12
ADVICE = "make it where it is first used, not before"
KINDS = {  # in words, by the name of the type
    "lock": "a lock", "RLock": "a lock", "generator": "a generator", "TextIOWrapper": "an open file",
    "BufferedReader": "an open file", "BufferedWriter": "an open file", "BufferedRandom": "an open file",
    "socket": "a socket", "Connection": "a connection", "Thread": "a thread", "module": "a module",
}  # fmt: skip


def unsendable(task: Task) -> str | None:
    """What of the task cannot be sent, in words; None where all of it can. Lambdas and classes of a script travel; locks,
    generators, open files and connections do not."""
    for field in fields(task):
        found = culprit(getattr(task, field.name), f"task.{field.name}")
        if found is not None:
            place, value = found
            kind = type(value).__name__
            what = f"{KINDS[kind]} ({kind})" if kind in KINDS else f"a {kind}"
            return f"{place} is {what}, which cannot be sent to a rank"
    return None


def culprit(value: Any, place: str) -> tuple[str, Any] | None:
    """The innermost thing that cannot be sent, with the way to it; None where everything can."""
    if refuses_to_travel(value) is None:
        return None
    seen: set[int] = set()
    for _ in range(DEEPEST):
        seen.add(id(value))
        inner = next(
            (
                (name, child)
                for name, child in _inside(value)
                if id(child) not in seen and refuses_to_travel(child) is not None
            ),
            None,
        )
        if inner is None:
            break
        place, value = place + inner[0], inner[1]
    return place, value


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, each with how it is reached."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{number}]", child) for number, child in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif inspect.ismethod(value):
        yield ".__self__", value.__self__
    elif inspect.isfunction(value):
        used = inspect.getclosurevars(value)
        yield from ((f"'s variable {name}", child) for name, child in {**used.globals, **used.nonlocals}.items())
        yield from ((f"'s default {number}", child) for number, child in enumerate(value.__defaults__ or ()))
    elif not inspect.isclass(value) and not inspect.ismodule(value):
        names = [*getattr(value, "__dict__", {}), *_slots(value)]
        yield from ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name))


def _slots(value: Any) -> list[str]:
    slots = getattr(type(value), "__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)
