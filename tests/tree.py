"""The tree of docs/architecture.md: one line per file, the first line of its docstring. `make tree` writes it anew."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- tree -->\n```\n", "```\n<!-- /tree -->"


def summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def lines() -> list[str]:
    package = ROOT / "src" / "manyhands"
    found = []
    for path in sorted(
        package.rglob("*.py"), key=lambda path: (path.parent.parts, path.name != "__init__.py", path.name)
    ):
        name = path.relative_to(package)
        shown = f"{name.parent}/" if path.name == "__init__.py" and name.parent.parts else str(name)
        found.append(f"{shown:<44} {summary(path)}".rstrip())
    return found


def page() -> str:
    """The page with its tree as the files are now."""
    before, rest = PAGE.read_text().split(START)
    return before + START + "\n".join(lines()) + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
