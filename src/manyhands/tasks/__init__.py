"""The published workloads, each a file that defines `task`, and `load_task`, which finds a task by name or path.

Importing this package imports no torch: the list of tasks is read from the files' own docstrings.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from ..errors import BadInput, did_you_mean
from ..record import declared

if TYPE_CHECKING:
    from ..task import Task

__all__ = ["builtin", "check_names", "declared_task", "load_task"]

FOLDER = Path(__file__).parent


def builtin() -> dict[str, str]:
    """The built-in tasks: name -> what it is, in one line."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem != "__init__":
            docstring = ast.get_docstring(declared.tree(path)) or ""
            found[path.stem] = docstring.partition("\n")[0].rstrip(".")
    return found


def declared_task(name: str) -> tuple[tuple[declared.Option, ...], str]:
    """The options of a built-in task, and an example; torch is not needed."""
    if task_file(name) is not None:
        raise BadInput(f"{name} is a file of your own; the built-in tasks are: {', '.join(builtin())}")
    check_names(name)
    path = FOLDER / f"{name}.py"
    return declared.options(path, "make"), declared.example(path, "make")


def check_names(spec: str) -> None:
    """Refuse a task, an option of one, or a file that does not exist; torch is not needed."""
    file = task_file(spec)
    if file is not None:
        _check_file(file, "a task")
        return
    name, _, text = spec.partition(":")
    known = builtin()
    if name not in known:
        if Path(f"{name}.py").is_file():
            raise BadInput(f'no task named "{name}"; did you mean the file "{name}.py"?')
        raise BadInput(f'no task named "{name}"{did_you_mean(name, known)}')
    taken = [option.name for option in declared.options(FOLDER / f"{name}.py", "make")]
    for part in filter(None, text.split(",")):
        option = part.partition("=")[0]
        if option not in taken:
            raise BadInput(f'task {name} has no option "{option}"{did_you_mean(option, taken)}')


def load_task(spec: str | os.PathLike[str], batch_size: int | None = None) -> Task:
    """The task a spec names.

    `glyphs`, `cifar10:norm=none,width=0.5`, `mnist:slow` are built in; `my_task.py` is a file that defines `task`
    (a Task, or a function without arguments that returns one); `my_task.py:other` takes another variable of it.
    With `batch_size` the task has that one; a built-in task with an option `batch` sets its learning rate by it.
    """
    text = os.fspath(spec)
    check_names(text)
    file = task_file(text)
    if file is not None:
        task = _from_file(file, text.partition(".py:")[2] or "task")
    else:
        name, _, options = text.partition(":")
        task = _from_name(name, options, batch_size).replace(name=text)
    return task if batch_size is None else task.replace(batch_size=batch_size)


def task_file(spec: str) -> Path | None:
    """The file that `load_task` runs for this spec; None where it names a built-in task, whose options may be paths."""
    name, colon, _ = spec.partition(":")
    if colon and name in builtin():
        return None
    file, colon, _ = spec.partition(".py:")
    if colon:
        return Path(file + ".py")
    return Path(spec) if spec.endswith(".py") or os.sep in spec else None


def _from_name(name: str, options: str, batch_size: int | None) -> Task:
    module = importlib.import_module(f".{name}", __name__)
    values = _options(name, module.make, options)
    if batch_size is not None and "batch" in inspect.signature(module.make).parameters:
        values["batch"] = batch_size
    return module.make(**values)


# ---- options -----------------------------------------------------------------------------------------------------


def _options(name: str, make: Callable[..., Task], text: str) -> dict[str, Any]:
    """`norm=none,width=0.5` as keywords of `make`, read by its annotations; a bare word switches an option on."""
    kinds = {option: _given(kind) for option, kind in typing.get_type_hints(make).items()}
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        option, equals, value = part.partition("=")
        if option in values:
            raise BadInput(f"task {name}: option {option} is given twice ({text})")
        if not equals and kinds[option] is not bool:
            raise BadInput(f"task {name}: option {option} needs {_expected(kinds[option])}: write {option}=VALUE")
        values[option] = _value(name, option, kinds[option], value if equals else "yes")
    return values


def _given(kind: Any) -> Any:
    """What an option is where it is given: of `float | None` a number."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return next(one for one in typing.get_args(kind) if one is not types.NoneType)


def _value(name: str, option: str, kind: Any, text: str) -> Any:
    try:
        if typing.get_origin(kind) is typing.Literal:
            return {str(choice): choice for choice in typing.get_args(kind)}[text]
        if kind is bool:
            return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise BadInput(f'task {name}: option {option} needs {_expected(kind)} (found "{text}")') from None


def _expected(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    return {bool: "yes or no", int: "a whole number", float: "a number"}.get(kind, "a word")


def positive(task: str, rule: str, **options: float) -> None:
    """Refuse options of a built-in task that are not above 0."""
    for name, value in options.items():
        if not value > 0:
            raise BadInput(f"task {task}: option {name} must be {rule} (found {value})")


def listed(words: str) -> list[str]:
    """A vocabulary for texts that are made up."""
    return words.split()


# ---- files -------------------------------------------------------------------------------------------------------


def run_file(path: Path, what: str = "a task") -> types.ModuleType:
    """Run a user's file that defines a task or the like."""
    _check_file(path, what)
    from ..data.process_state import alone

    with alone():
        return _import(path.resolve())


def _check_file(path: Path, what: str) -> None:
    if not path.is_file():
        problem = "it is a folder" if path.is_dir() else "there is no such file"
        raise BadInput(f'cannot load {what} from "{path}": {problem}')


def _from_file(path: Path, variable: str) -> Task:
    from ..task import Task

    module = run_file(path)
    if not hasattr(module, variable):
        tasks = [name for name, value in vars(module).items() if isinstance(value, Task)]
        there = f"; it defines {', '.join(tasks)}: use {path}:{tasks[0]}" if tasks else ""
        raise BadInput(f"{path} defines no `{variable}`{there}")
    task = getattr(module, variable)
    if not isinstance(task, Task) and callable(task):
        task = _call(path, variable, task)
    if not isinstance(task, Task):
        raise BadInput(f"`{variable}` of {path} must be a manyhands.Task (found {type(task).__name__})")
    return task if task.name else task.replace(name=path.stem if variable == "task" else f"{path.stem}:{variable}")


def _import(path: Path) -> types.ModuleType:
    """Run the file as a module that other processes receive by value, its folder importable as for any script."""
    name = f"manyhands_task_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f'cannot load a task from "{path}": it is not a Python file')
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look a class's module up there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadInput(f"cannot load {path}: {_where(error, path)}") from error
    cloudpickle.register_pickle_by_value(module)
    return module


def _call(path: Path, variable: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"`{variable}()` of {path} failed: {_where(error, path)}") from error


def _where(error: BaseException, path: Path) -> str:
    """`line 7: NameError: name 'x' is not defined`: the last line of the user's own file on the way to the error."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if isinstance(error, ImportError) and "relative import" in said:
        said += "; a task file is loaded by itself: import files beside it by their names (import model, not from . import model)"
    return f"line {lines[-1]}: {said}" if lines else said
