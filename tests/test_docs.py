"""The docs are true: every Python block runs, every command names options that exist, every page is in the navigation."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import nbclient
import pytest
import yaml

from manyhands.strategies import TABLE
from tests import tutorial
from tests.conftest import ROOT
from tests.tree import END, PAGE, START, lines

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


RUNNABLE = [
    page for page in PAGES if blocks(page, "python") and page != tutorial.PAGE
]  # a test runs that as a notebook


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
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


def test_the_navigation_lists_every_page_once() -> None:
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    outside = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]  # mkdocs_links.py makes pages of these
    assert sorted(in_navigation(yaml_of("mkdocs.yml")["nav"])) == sorted([*pages, *outside])


def test_the_site_is_built_strictly() -> None:
    """With --quiet, mkdocs 1.6 counts no warnings: --strict then let every broken link pass."""
    (line,) = re.findall(r"mkdocs build(.*)", (ROOT / "Makefile").read_text())
    assert line.split() == ["--strict"]


def in_navigation(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in in_navigation(part)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflows_call_targets_that_there_are(name: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    jobs = yaml_of(f".github/workflows/{name}")["jobs"].values()
    lines = [line for job in jobs for step in job["steps"] for line in step.get("run", "").splitlines()]
    called = [word for line in lines for word in re.findall(r"\bmake ([\w-]+)", line)]
    assert called
    assert set(called) <= targets


def test_ci_runs_what_a_submission_must_pass() -> None:
    asked = set(re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE))
    assert asked <= set(re.findall(r"run: make ([\w-]+)", (ROOT / ".github/workflows/ci.yml").read_text()))


def yaml_of(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_tutorial_is_the_notebook() -> None:
    assert tutorial.text() == tutorial.NOTEBOOK.read_text(), "run `python -m tests.tutorial`"


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")  # what a kernel's libraries warn about is theirs
def test_the_tutorial_runs_as_a_notebook(tmp_path: Path) -> None:
    where = {"metadata": {"path": str(tmp_path)}}
    book = tutorial.notebook()
    nbclient.NotebookClient(book, timeout=240, kernel_name="python3", resources=where).execute()
    said = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", []))
    assert "exact: True" in said
    assert (tmp_path / "tutorial.html").exists()
