"""The docs are true: every Python block runs, every command names options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from manyhands.strategies import TABLE
from tests.conftest import ROOT
from tests.tree import END, PAGE, START, lines

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_run(page: Path) -> None:
    """The blocks of a page run one after the other, in one namespace, in an empty folder."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        exec(compile(block, f"{page.name}", "exec"), namespace)


@pytest.mark.parametrize("name", TABLE)
def test_every_strategy_has_a_page_with_its_command(name: str) -> None:
    page = ROOT / "docs" / "strategies" / f"{name}.md"
    assert f"manyhands train glyphs {name}" in page.read_text()


def commands() -> dict[str, set[str]]:
    """The options of every subcommand."""
    import typer.main

    from manyhands.cli.app import app

    group = typer.main.get_command(app)
    return {
        name: {flag for parameter in command.params for flag in parameter.opts}
        for name, command in group.commands.items()
    }  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_exist(page: Path) -> None:
    known = commands()
    for block in [*blocks(page, "sh"), *blocks(page, "console")]:
        for line in block.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ")
            match = re.search(r"(?:^|-m |\| )manyhands (\S.*)$", line.split("#")[0])
            if not match or match[1].startswith("-"):
                continue
            words = shlex.split(match[1].split("|")[0])
            assert words[0] in known, line
            for word in words[1:]:
                if words[0] == "run" and not word.startswith("-") and word.endswith((".py", ".train")):
                    break  # what follows is the script's own
                if word.startswith("-") and not re.fullmatch(r"-\d+", word):
                    assert word.split("=")[0] in known[words[0]] | {"--help"}, f"{word} in: {line}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target


def test_the_tree_of_the_architecture_page_is_the_one_there_is() -> None:
    """Strategies may be missing until the next `make tree`: a new one is a file, a line and a page."""
    shown = PAGE.read_text().split(START)[1].split(END)[0].splitlines()
    there = lines()
    assert [line for line in shown if line not in there] == [], "run `make tree`"
    missing = [line for line in there if line not in shown]
    assert [line for line in missing if not re.match(r"strategies/\w+\.py", line)] == [], "run `make tree`"
