"""The help: short and well set at 80 columns, the same for every way to ask for it, whole sentences throughout."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import typer

from manyhands.cli.app import GROUPS, app
from tests.conftest import Command

COMMANDS = [command.__name__ for commands in GROUPS.values() for command in commands]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_bare_manyhands_is_the_help_and_no_error(command: Command) -> None:
    """It used to end with exit code 2, and -h was no option."""
    code, out, err = command()
    assert (code, err) == (0, "")
    assert command("-h") == command("--help") == (0, out, "")
    assert max(map(len, out.splitlines())) <= 80
    assert all(f"\n{title}\n" in out for title in (*GROUPS, "Examples", "Options"))
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert len(out.splitlines()) <= 50
    assert command("--version")[0] == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_in_sentences(name: str, command: Command) -> None:
    code, out, _ = command(name, "-h")
    assert code == 0
    assert out.startswith("Usage: ")
    assert max(map(len, out.splitlines())) <= 80
    assert "<" not in out.partition("\nOptions:")[0], "a type of Python's, as in STRATEGY <list[str]>"
    for what, text in helps(name):
        assert text, f"{name} {what} says nothing"
        assert text[0].isupper() or text.split()[0] in ("auto,", "SCRIPT"), f"{name} {what}: {text}"
        assert text.rstrip()[-1] in ".?", f"{name} {what}: {text}"


@pytest.mark.parametrize("command", [command for commands in GROUPS.values() for command in commands])
def test_no_option_leaves_its_name_to_its_metavar(command: Callable[..., None]) -> None:
    """typer 0.27 made `--DEVICE` of an option `device` whose metavar is DEVICE, and refused `--device`."""
    for name, given in inspect.signature(command, eval_str=True).parameters.items():
        for info in getattr(given.annotation, "__metadata__", ()):
            if isinstance(info, typer.models.OptionInfo) and str(info.metavar).lower() == name:
                assert info.default == f"--{name}", f"{command.__name__} --{name}"


def helps(name: str) -> Iterator[tuple[str, str]]:
    """What a command and its options say of themselves."""
    found = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    yield "", found.help
    yield from ((one.name, one.help or "") for one in found.params if one.name != "help")


COMPLETED = """
import sys
sys.argv = ["manyhands"]
from manyhands.cli.app import main
try:
    main()
except SystemExit:
    assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tra", ["train"]),
        ("train gl", ["glyphs"]),
        ("train glyphs pipe", ["pipeline"]),
        ("train --prec", ["--precision"]),
    ],
)
def test_the_shell_completes_commands_names_and_options_without_torch(words: str, found: list[str]) -> None:
    environment = {
        **os.environ,
        "_MANYHANDS_COMPLETE": "complete_bash",
        "COMP_WORDS": f"manyhands {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPLETED], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == found
