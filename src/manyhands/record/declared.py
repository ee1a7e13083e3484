"""What a file of ours says of its options, read from its text: running a strategy or a task imports torch, for seconds.

Meanings stand once, in the docstring of what takes the options, in a section `Args:` (one `name: meaning` per option,
further lines indented); a section `Example:` holds a command. `strategies NAME`, `tasks NAME`, the checks of names before
torch is there, and shell completion all read them here.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SECTION = re.compile(r"^(Args|Example):$")
ARGUMENT = re.compile(r"^    (\w+): (.+)$")


@dataclass(frozen=True)
class Option:
    """One option: its default is None where there is none, or where the machine decides."""

    name: str
    default: Any
    meaning: str


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def definition(path: Path, name: str) -> ast.ClassDef | ast.FunctionDef:
    """The class or function of that name in a file."""
    kinds = ast.ClassDef | ast.FunctionDef
    return next(node for node in tree(path).body if isinstance(node, kinds) and node.name == name)


def options(path: Path, name: str) -> tuple[Option, ...]:
    """The fields of a dataclass, or the parameters of a function, with their defaults and meanings."""
    node = definition(path, name)
    meanings, known = arguments(ast.get_docstring(node) or ""), constants(path)
    defaults = _fields(node) if isinstance(node, ast.ClassDef) else _parameters(node)
    return tuple(Option(one, value(default, known), meanings.get(one, "")) for one, default in defaults)


def example(path: Path, name: str) -> str:
    """The command in the docstring of a class or function."""
    return "\n".join(line.strip() for line in _sections(ast.get_docstring(definition(path, name)) or "")["Example"])


def arguments(docstring: str) -> dict[str, str]:
    """`name: meaning` of a section `Args:`."""
    found: dict[str, str] = {}
    for line in _sections(docstring)["Args"]:
        begins = ARGUMENT.match(line)
        if begins:
            found[begins[1]] = begins[2]
        elif found:
            found[next(reversed(found))] += f" {line.strip()}"
    return found


def constants(path: Path) -> dict[str, ast.expr]:
    """What a file gives names to, outside of functions and classes."""
    found: dict[str, ast.expr] = {}
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


def value(node: ast.expr | None, known: Mapping[str, ast.expr]) -> Any:
    """A plain value, with names of the file in it resolved; None where it has to be worked out."""
    try:
        return None if node is None else ast.literal_eval(_Resolved(known).visit(copy.deepcopy(node)))
    except ValueError:
        return None


class _Resolved(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, ast.expr]):
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.visit(copy.deepcopy(self.known[node.id])) if node.id in self.known else node  # type: ignore[no-any-return]


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id, one.value


def _parameters(node: ast.FunctionDef) -> Iterator[tuple[str, ast.expr | None]]:
    given = node.args.args
    yield from zip((one.arg for one in given), node.args.defaults, strict=True)  # all options have one


def _sections(docstring: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"Args": [], "Example": []}
    current: list[str] | None = None
    for line in docstring.splitlines():
        if heading := SECTION.match(line):
            current = found[heading[1]]
        elif line and not line.startswith(" "):
            current = None
        elif line and current is not None:
            current.append(line)
    return found
