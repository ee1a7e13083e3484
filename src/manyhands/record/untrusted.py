"""What anybody may have written: records and live files are read within bounds and believed only in the expected form.

read_json   the file, if it is one, of a bounded size and depth; its text without control characters
fits        whether a value has the form that an annotation states (a TypedDict says it for the keys that are there)
plain       a text without what a terminal would obey: escape sequences, carriage returns, reversed writing
"""

from __future__ import annotations

import json
import re
import types
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..errors import BadInput

LARGEST = 2**64  # beyond that nothing was counted or measured
DEEPEST = 20  # levels of lists and objects; records have five
# Control characters but for newline and tab, signs that change the direction of writing, halves of characters.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """The text as it may be printed."""
    return _OBEYED.sub("", text)


def read_json(file: Path, most_bytes: int) -> Any:
    """The content of a JSON file; bad input, in one line, if it is none."""
    try:
        if not file.is_file():  # a pipe would keep us waiting
            raise BadInput(f"{file} is not a file")
        size = file.stat().st_size
        if size > most_bytes:
            raise BadInput(f"{file} cannot be read: {size:,} bytes are more than such a file may have ({most_bytes:,})")
        return _cleaned(json.loads(file.read_text(encoding="utf-8")))
    except OSError as problem:
        raise BadInput(f"{file} cannot be read ({problem.strerror})") from None
    except RecursionError:
        raise BadInput(f"{file} cannot be read: it is nested too deeply") from None
    except ValueError as problem:
        if isinstance(problem, BadInput):
            raise
        raise BadInput(f"{file} cannot be read: {plain(str(problem))}") from None


def _cleaned(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [item if type(item) is float else _cleaned(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {plain(key): _cleaned(item, depth + 1) for key, item in value.items()}
    return value


def fits(value: Any, form: Any) -> bool:
    """Whether a value has the form of an annotation: plain types, unions, lists, dicts by text, TypedDicts, Any."""
    if form is Any:
        return True
    if form in (None, type(None)):
        return value is None
    if form is bool or form is str:
        return isinstance(value, form)
    if form is int:
        return type(value) is int and abs(value) < LARGEST
    if form is float:
        return type(value) in (int, float) and abs(value) < LARGEST  # (false for what is not finite)
    if is_typeddict(form):
        return isinstance(value, dict) and all(
            fits(value[key], inner) for key, inner in _keys(form).items() if key in value
        )
    if get_origin(form) is list:
        return isinstance(value, list) and _all_fit(value, *get_args(form))
    if get_origin(form) is tuple:
        inners = get_args(form)
        return (
            isinstance(value, list)
            and len(value) == len(inners)
            and all(fits(item, inner) for item, inner in zip(value, inners, strict=True))
        )
    if get_origin(form) is dict:
        _, inner = get_args(form)
        return isinstance(value, dict) and all(fits(item, inner) for item in value.values())
    if get_origin(form) in (Union, types.UnionType):
        return any(fits(value, choice) for choice in get_args(form))
    raise TypeError(f"no rule for {form}")


def _all_fit(values: list[Any], form: Any) -> bool:
    if form == float | None:  # the losses of a million steps
        values, form = [item for item in values if item is not None], float
    if form is float:
        return set(map(type, values)) <= {int, float} and all(abs(item) < LARGEST for item in values)
    return all(fits(item, form) for item in values)


@cache
def _keys(form: Any) -> dict[str, Any]:
    return get_type_hints(form)
