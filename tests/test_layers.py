"""Imports point one way, and the strategies know neither each other nor the loop."""

from __future__ import annotations

import ast
from pathlib import Path

import manyhands
from manyhands.strategies import TABLE

ROOT = Path(manyhands.__file__).parent
LAYERS = (
    "errors",
    "alone",
    "torch_parts",
    "measure",
    "data",
    "model",
    "world",
    "task",
    "job",
    "strategies",
    "evaluate",
    "tally",
    "loop",
    "fitting",
    "joining",
    "fit",
    "compare",
    "cli",
)


def imports(path: Path) -> set[str]:
    """The manyhands modules a file imports when it runs (not for type checkers alone)."""
    package = path.relative_to(ROOT).parts[:-1]
    found = set()
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in guarded:
            base = list(package[: len(package) - node.level + 1])
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {".".join([*base, name]) for name in names}
    return found


def test_lower_layers_do_not_import_higher_ones() -> None:
    for path in ROOT.rglob("*.py"):
        top = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if top not in LAYERS:
            continue
        for module in imports(path):
            target = module.split(".")[0]
            if target in LAYERS:
                assert LAYERS.index(target) <= LAYERS.index(top), f"{path.name} imports {module}"


def test_strategies_import_neither_each_other_nor_the_loop() -> None:
    for name in TABLE:
        found = imports(ROOT / "strategies" / f"{name}.py")
        others = {f"strategies.{other}" for other in TABLE if other != name}
        assert not found & others, f"{name} imports {found & others}"
        assert not found & {"loop", "fit", "compare"}


def test_report_reads_only_measure() -> None:
    for path in (ROOT / "report").glob("*.py"):
        tops = {module.split(".")[0] for module in imports(path)}
        assert tops <= {"errors", "measure", "report"}, path.name


def test_strategy_files_stay_readable() -> None:
    for name in TABLE:
        lines = len((ROOT / "strategies" / f"{name}.py").read_text().splitlines())
        assert lines <= 275, f"strategies/{name}.py has {lines} lines"
