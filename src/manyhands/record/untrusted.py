"""What anybody may have written: records and live files are read within bounds and believed only in the expected form.

read_json   the file, if it is one, of a bounded size and depth; its text without control characters
fits        whether a value has the form that an annotation states, or a drawing of objects and lists
walk        a nest with every value in it changed
cleaned     a nest whose texts may be printed
plain       a text without what a terminal would obey: escape sequences, carriage returns, reversed writing
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from ..errors import BadInput

LARGEST = 2**64  # beyond that nothing was counted or measured
DEEPEST = 20  # levels of lists and objects; records have five
_NUMBERS = {float, int, type(None)}
_PLAIN = {str, bool, *_NUMBERS}  # most of a record, and told from nests at once
# Control characters but for newline and tab, signs that change the direction of writing, halves of characters.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """The text as it may be printed."""
    return _OBEYED.sub("", text)


def read_json(file: Path, most_bytes: int, only: Collection[str] | None = None, unparsed: str = "") -> Any:
    """The content of a JSON file; bad input, in one line, if it is none. `only`: of an object, these fields alone;
    `unparsed`: a field, a long list of numbers, whose text is passed over."""
    try:
        if not file.is_file():  # a pipe would keep us waiting
            raise BadInput(f"{file} is not a file")
        size = file.stat().st_size
        if size > most_bytes:
            raise BadInput(f"{file} cannot be read: {size:,} bytes are more than such a file may have ({most_bytes:,})")
        text = file.read_text(encoding="utf-8")
        found = json.loads(_without(text, unparsed) if unparsed else text)
        if only is not None and isinstance(found, dict):
            found = {key: found[key] for key in only if key in found}
        return cleaned(found)
    except OSError as problem:
        raise BadInput(f"{file} cannot be read ({problem.strerror})") from None
    except RecursionError:
        raise BadInput(f"{file} cannot be read: it is nested too deeply") from None
    except ValueError as problem:
        if isinstance(problem, BadInput):
            raise
        raise BadInput(f"{file} cannot be read: {plain(str(problem))}") from None


def _without(text: str, field: str) -> str:
    """The text with an empty list in a field's place: that of the losses of a million steps takes seconds to parse."""
    name = f'"{field}": ['
    before, found, rest = text.partition(name)
    return before + name + rest[rest.find("]") :] if found else text


def walk(value: Any, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """The same nest of lists and objects with every key and value in it changed."""
    if type(value) in _PLAIN:
        return change(value)
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, list | tuple):
        if set(map(type, value)) <= _NUMBERS:  # the losses of a million steps
            return [change(item) for item in value]
        return [walk(item, change, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {change(str(key)): walk(item, change, depth + 1) for key, item in value.items()}
    return change(value)


def cleaned(nest: Any) -> Any:
    """The same nest with every text in it as it may be printed."""
    return walk(nest, lambda value: plain(value) if isinstance(value, str) else value)


def fits(value: Any, form: Any) -> bool:
    """Whether a value has a form: an annotation (plain types, unions, lists, tuples, dicts by text, Any), or one
    drawn: {key: form} for an object with some of these keys, [form] for a list, (form, form) for a choice, a range for
    a whole number within it."""
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
    if isinstance(form, range):
        return type(value) is int and value in form
    if isinstance(form, dict):
        return isinstance(value, dict) and all(fits(value[key], inner) for key, inner in form.items() if key in value)
    kind, inners = (type(form), form) if isinstance(form, list | tuple) else _parts(form)
    if kind in (Union, UnionType) or isinstance(form, tuple):
        return any(fits(value, choice) for choice in inners)
    if kind is list:
        return isinstance(value, list) and _all_fit(value, inners[0])
    if kind is tuple:
        return isinstance(value, list) and len(value) == len(inners) and all(map(fits, value, inners))
    if kind is dict:
        return isinstance(value, dict) and all(fits(item, inners[1]) for item in value.values())
    raise TypeError(f"no rule for {form}")


@cache
def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Asked for every value of every record."""
    return get_origin(annotation), get_args(annotation)


def _all_fit(values: list[Any], form: Any) -> bool:
    if form == float | None:  # the losses of a million steps
        values, form = [item for item in values if item is not None], float
    if form is float:
        return set(map(type, values)) <= {int, float} and all(abs(item) < LARGEST for item in values)
    return all(fits(item, form) for item in values)
