"""Imports point one way. Every module has its layer, and an import counts however it is written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import manyhands
from manyhands.strategies import TABLE

ROOT = Path(manyhands.__file__).parent
LAYERS = ("errors", "record", "data", "task", "model", "world", "strategies", "training", "studies", "cli")
# Beside the layers: what each of these may know.
BESIDE = {
    "pages": {"errors", "record"},
    "schedules": {"errors"},
    "tasks": {"errors", "record", "data", "task", "schedules"},
    "bridges": {"errors", "record", "data", "task", "schedules"},
    "nn": {"errors", "data", "model", "world", "strategies"},
    "__init__": {"errors", *LAYERS, "pages", "schedules", "tasks", "bridges", "nn"},
    "__main__": {"cli"},
}
READ_BY = {
    "pages": {"studies", "cli"},
    "tasks": {"studies", "cli"},
    "bridges": {"studies", "cli"},
    "schedules": set(),
}  # who may know these
MODULES = sorted(ROOT.rglob("*.py"))


def imports(path: Path, root: Path = ROOT) -> set[str]:
    """The manyhands modules a file imports when it runs (not for type checkers alone): relative, absolute or by string."""
    package = path.relative_to(root).parts[:-1]
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    return {name for node in ast.walk(tree) if id(node) not in guarded for name in _imported(node, package) if name}


def _imported(node: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (
            alias.name.removeprefix("manyhands.") for alias in node.names if alias.name.startswith("manyhands.")
        )
    if isinstance(node, ast.ImportFrom):
        base = [*package[: len(package) - node.level + 1]] if node.level else []
        full = [*base, *(node.module or "").split(".")]
        if node.level or full[0] == "manyhands":
            names = [part for part in full if part and not (part == "manyhands" and not node.level)]
            yield from (
                [".".join(names)] if names else [alias.name for alias in node.names if alias.name != "__version__"]
            )
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from re.findall(r"(?:import |from |^)manyhands\.([a-z_]+(?:\.[a-z_]+)+)", node.value)


def layer(path: Path, root: Path = ROOT) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def objections(path: Path, root: Path = ROOT) -> list[str]:
    own = layer(path, root)
    if own not in LAYERS and own not in BESIDE:
        return [f"{path.name} is in no layer"]
    known = set(LAYERS[: LAYERS.index(own) + 1]) if own in LAYERS else BESIDE[own] | {own}
    known |= {beside for beside, readers in READ_BY.items() if own in readers}
    return [f"{path.name} imports {module}" for module in imports(path, root) if module.split(".")[0] not in known]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    assert objections(path) == []


@pytest.mark.parametrize(
    "text",
    [
        "from ..training.loop import Training",
        "from .. import training",
        "import manyhands.training.loop",
        "from manyhands.training import loop",
        "def f():\n    from manyhands.training import loop",
        'import_module("manyhands.training.loop")',
        'run("import sys; from manyhands.training.loop import Training")',
    ],
)
def test_an_import_counts_however_it_is_written(text: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "reader.py"
    path.write_text(text)
    [objection] = objections(path, tmp_path)
    assert objection.startswith("reader.py imports training")


def test_a_module_in_no_layer_fails(tmp_path: Path) -> None:
    path = tmp_path / "utils.py"
    path.write_text("")
    assert objections(path, tmp_path) == ["utils.py is in no layer"]


def test_strategies_import_neither_each_other_nor_the_table() -> None:
    for name in TABLE:
        found = imports(ROOT / "strategies" / f"{name}.py")
        others = {f"strategies.{other}" for other in TABLE if other != name}
        assert not found & {*others, "strategies.table"}, f"{name} imports {found & others}"


def test_files_stay_readable() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert {str(path): count for path, count in lines.items() if count > 350} == {}
    beside = {path.stem for path in ROOT.glob("*.py")}
    assert beside <= {"__init__", "__main__", "errors", "task", "schedules", "nn"}
