"""Whether what verify is given is a plain training script or a task, told from its text: nothing is run, torch is not needed."""

from __future__ import annotations

import ast
from pathlib import Path


def is_script(path: str | Path) -> bool:
    """A Python file that defines no `task`, as far as can be told without running it."""
    path = Path(path)
    if path.suffix != ".py" or not path.is_file():
        return False
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    return not any(_defines_task(node) for node in tree.body)


def _defines_task(node: ast.stmt) -> bool:
    if isinstance(node, ast.If | ast.Try | ast.With):
        inner = [*node.body, *getattr(node, "orelse", ())]
        return any(_defines_task(one) for one in inner)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name == "task"
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((one.asname or one.name) == "task" for one in node.names)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(name, ast.Name) and name.id == "task" for target in targets for name in ast.walk(target))
