"""`strategies NAME` and `tasks NAME`: every option with its meaning, from one place, without torch."""

from __future__ import annotations

import dataclasses
import inspect
import json
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from manyhands.record.declared import arguments
from manyhands.strategies import TABLE, declared_strategy, make_strategy, strategy_class
from manyhands.strategies.declared import Declared
from manyhands.tasks import builtin, check_names, declared_task
from tests.conftest import Command


def default_of(value: Any) -> Any:
    return None if value in (dataclasses.MISSING, inspect.Parameter.empty) else value


@pytest.mark.parametrize("name", TABLE)
def test_what_a_strategy_declares_is_what_it_is(name: str) -> None:
    found, kind = declared_strategy(name), strategy_class(name)
    fields = {item.name: default_of(item.default) for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    assert {one.name: one.default for one in found.options} == fields
    assert all(one.meaning for one in found.options), f"say what each option of {name} means, under Args:"
    assert set(arguments(inspect.getdoc(kind) or "")) == set(fields)  # and nothing that is gone
    plain = make_strategy(name)
    assert (found.summary, found.runs_on) == (kind.summary, plain.traits.runs_on)
    assert found.exact is (plain.traits.exact is True)
    for option, why in found.inexact.items():
        assert make_strategy(f"{name}:{option}").traits.exact == why
    command, verb, task, spec, *options = shlex.split(found.example)
    assert (command, verb, make_strategy(spec).name) == ("manyhands", "train", name)
    check_names(task)
    assert options == [] or options[:1] == ["--ranks"]


@pytest.mark.parametrize("name", builtin())
def test_what_a_task_declares_is_what_it_takes(name: str) -> None:
    options, example = declared_task(name)
    make = import_module(f"manyhands.tasks.{name}").make
    taken = {one.name: default_of(one.default) for one in inspect.signature(make).parameters.values()}
    assert {one.name: one.default for one in options} == taken
    assert all(one.meaning for one in options), f"say what each option of {name} means, under Args:"
    assert set(arguments(inspect.getdoc(make) or "")) == set(taken)
    spec = shlex.split(example)[2]
    assert spec.partition(":")[0] == name
    check_names(spec)


@pytest.mark.parametrize("kind", ["strategies", "tasks"])
def test_one_of_them_in_words(kind: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in TABLE if kind == "strategies" else builtin():
        code, out, _ = command(kind, name)
        found = declared_strategy(name) if kind == "strategies" else declared_task(name)
        options, example = (found.options, found.example) if isinstance(found, Declared) else found
        assert code == 0
        assert all(f"\n  {one.name} " in out for one in options)
        assert example in out
        assert max(map(len, out.splitlines())) <= 80


def test_short_names_and_json(command: Command) -> None:
    code, out, _ = command("strategies", "ps", "--json")
    row = json.loads(out)
    assert (code, row["name"], row["short"], row["exact"]) == (0, "parameter_server", "ps", True)
    assert set(row["inexact"]) == {"mode=async", "mode=bounded"}
    assert {"name": "servers", "default": 1}.items() <= row["options"][1].items()
    code, out, _ = command("tasks", "glyphs", "--json")
    assert [one["name"] for one in json.loads(out)["options"]] == ["train", "test"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["strategies", "dpp"], 'no strategy named "dpp"; did you mean "ddp"?'),
        (["tasks", "glyph"], 'no task named "glyph"; did you mean "glyphs"?'),
        (["tasks", "glyphs:trian=5"], 'task glyphs has no option "trian"; did you mean "train"?'),
        (["strategies", "ddp:comprss=bf16"], 'ddp has no option "comprss"; did you mean "compress"?'),
    ],
)
def test_a_misspelt_name_is_answered_with_the_likely_one(words: list[str], told: str, command: Command) -> None:
    assert command(*words) == (2, "", f"manyhands: {told}\n")


def test_what_stands_in_a_command_can_be_asked_for(command: Command, tmp_path: Path) -> None:
    """`tasks my_task.py` and `tasks glyphs:train=5` ended in a traceback."""
    assert command("tasks", "glyphs:train=5") == command("tasks", "glyphs")
    assert command("strategies", "ddp:compress=bf16") == command("strategies", "ddp")
    (tmp_path / "mine.py").write_text("task = None")
    for own in ("mine.py", "mine.py:task"):
        code, out, err = command("tasks", own)
        assert (code, out) == (2, "")
        assert err.startswith(f"manyhands: {own} is a file of your own; the built-in tasks are: cifar10, glyphs,")


def test_meanings_may_take_several_lines() -> None:
    found = arguments("One line.\n\nArgs:\n    a: first\n        goes on\n    b: second\n\nMore.\n    c: none\n")
    assert found == {"a": "first goes on", "b": "second"}


NAMES = """
import sys
from manyhands.cli.app import main
for words in {commands!r}:
    sys.argv = ["manyhands", *words]
    try:
        main()
    except SystemExit as leaving:
        print(leaving.code, {heavy!r} & set(sys.modules), file=sys.stderr)
"""


def test_names_are_checked_and_lists_are_shown_before_torch_is_imported() -> None:
    """An unknown task took four seconds."""
    bad = [
        ["train", "nosuch"], ["train", "glyphs", "dpp"], ["train", "glyphs", "ddp:chunks=3"], ["train", "glyphs:x=1"],
        ["train", "missing.py"], ["train", "glyphs", "--resume"], ["train", "glyphs", "--precision", "fp64"],
        ["train", "glyphs", "--device", "tpu"], ["compare", "nosuch"], ["compare", "--ranks", "x"], ["verify", "nosuch"],
        ["diagnose", "nosuch"], ["tune", "nosuch"], ["lab", "nosuch"], ["evaluate", "nowhere"], ["doctor", "nosuch"], ["chaos", "nosuch"],
    ]  # fmt: skip
    good = [["strategies"], ["strategies", "ddp"], ["tasks"], ["tasks", "glyphs", "--json"], []]
    code = NAMES.format(commands=[*bad, *good], heavy={"torch", "numpy"})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = [line for line in done.stderr.splitlines() if line.endswith("set()")]
    assert told == ["2 set()"] * len(bad) + ["0 set()"] * len(good), done.stderr
