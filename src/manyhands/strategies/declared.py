"""What a strategy's file says of it, read without running it (record/declared.py): for lists, and to check the names of options.

Its `traits` are read as they are written: `exact` is a plain value, or `NAME[self.option]` with a plain dictionary.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..record import declared

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Declared:
    """A strategy as `manyhands strategies NAME` shows it."""

    name: str
    short: str | None
    summary: str
    runs_on: str
    exact: bool  # with its options at their defaults
    inexact: Mapping[str, str]  # `option=value`, or "" whatever the options -> why its weights are not those of single
    options: tuple[declared.Option, ...]
    example: str


def read(name: str, kind: str, short: str | None) -> Declared:
    """From the class `kind` in the file of that name."""
    path = FOLDER / f"{name}.py"
    body, known, options = declared.definition(path, kind), declared.constants(path), declared.options(path, kind)
    traits = {**_default_traits(), **_written_traits(body)}
    exact, inexact = _exactness(traits["exact"], known, options)
    return Declared(
        name,
        short,
        declared.value(_assigned(body, "summary"), known),
        declared.value(traits["runs_on"], known),
        exact,
        inexact,
        options,
        declared.example(path, kind),
    )


def _default_traits() -> dict[str, ast.expr]:
    body = declared.definition(FOLDER / "contract.py", "Traits").body
    return {
        one.target.id: one.value
        for one in body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value is not None
    }


def _written_traits(body: ast.AST) -> dict[str, ast.expr]:
    """The keywords of `Traits(...)` in a class; none where it keeps the defaults."""
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Traits":
            return {word.arg: word.value for word in node.keywords if word.arg}
    return {}


def _assigned(body: ast.ClassDef | ast.FunctionDef, name: str) -> ast.expr | None:
    for node in body.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return node.value
    return None


def _exactness(
    node: ast.expr, known: Mapping[str, ast.expr], options: tuple[declared.Option, ...]
) -> tuple[bool, dict[str, str]]:
    if isinstance(node, ast.Constant):
        return node.value is True, {} if node.value is True else {"": str(node.value)}
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Attribute):
        option, found = node.slice.attr, declared.value(node.value, known)
        if isinstance(found, dict):
            usual = next(one.default for one in options if one.name == option)
            reasons = {f"{option}={choice}": why for choice, why in found.items() if why is not True}
            return found[usual] is True, reasons
    raise TypeError(f"exact={ast.unparse(node)} of a strategy's traits: write True, a reason, or NAME[self.option]")
