"""Finding tasks by name, with options, and in files."""

import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from manyhands.errors import BadInput
from manyhands.task import Task
from manyhands.tasks import builtin, load_task

TASK_FILE = """
import torch
from torch import nn
from manyhands.task import Task

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(3.0))
    def forward(self, x):
        return x * self.factor

def data():
    return torch.ones(4, 1), torch.ones(4, 1)

task = Task(model=Scale, train=data, loss=nn.functional.mse_loss, optimizer=torch.optim.SGD)
named = task.replace(name="mine")
number = 5

def made():
    return task

def broken():
    raise KeyError("no luck")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "my_task.py"
    path.write_text(TASK_FILE)
    return path


def test_builtin_lists_every_task_without_importing_torch():
    code = (
        "import sys, types; package = types.ModuleType('manyhands'); package.__path__ = [sys.argv[1]];"
        "sys.modules['manyhands'] = package; from manyhands.tasks import builtin; print(*builtin());"
        "assert 'torch' not in sys.modules"
    )
    import manyhands.tasks

    folder = str(Path(manyhands.tasks.__file__).parent.parent)
    out = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True).stdout
    assert "glyphs" in out.split()
    assert set(out.split()) == set(builtin())


@pytest.mark.parametrize("name", builtin())
def test_every_builtin_task_loads_and_says_what_it_is(name: str):
    assert 10 < len(builtin()[name]) < 120
    task = load_task(name)
    assert isinstance(task, Task)
    assert task.name == name
    assert task.test is not None
    assert cloudpickle.loads(cloudpickle.dumps(task)).name == name


def test_options_reach_the_task_and_its_name():
    task = load_task("glyphs:train=70,test=30")
    assert task.name == "glyphs:train=70,test=30"
    assert len(task.train()[0]) == 70
    assert len(task.test()[0]) == 30


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("glphs", 'no task named "glphs"; did you mean "glyphs"?'),
        ("zzzzzz", 'no task named "zzzzzz"; there are: '),
        ("", 'no task named ""; there are: '),
        ("glyphs:trian=5", 'task glyphs has no option "trian"; did you mean "train"?'),
        ("glyphs:train=many", 'task glyphs: option train needs a whole number (found "many")'),
        ("glyphs:train", "task glyphs: option train needs a whole number: write train=VALUE"),
        ("glyphs:train=0", "task glyphs: option train must be at least 1 (found 0)"),
        ("glyphs:train=5,train=6", "task glyphs: option train is given twice"),
    ],
)
def test_bad_names_and_options_are_one_line(spec: str, message: str):
    with pytest.raises(BadInput) as caught:
        load_task(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_a_file_here_is_pointed_to(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    with pytest.raises(BadInput, match=r'no task named "my_task"; did you mean the file "my_task.py"\?'):
        load_task("my_task")
    assert load_task("my_task.py").name == "my_task"


def test_a_file_gives_its_task_another_variable_or_what_a_function_returns(file: Path):
    assert load_task(file).name == "my_task"
    assert load_task(f"{file}:named").name == "mine"
    assert load_task(f"{file}:made").name == "my_task:made"


def test_an_edited_file_is_read_anew(file: Path):
    assert load_task(file).batch_size == 128
    file.write_text(TASK_FILE.replace("optimizer=torch.optim.SGD", "optimizer=torch.optim.SGD, batch_size=7777"))
    assert load_task(file).batch_size == 7777


def test_a_task_from_a_file_travels_by_value(file: Path):
    """Another process, which never saw the file, can build the model and the data."""
    parcel = cloudpickle.dumps(load_task(file))
    file.unlink()
    code = "import sys, pickle; task = pickle.load(sys.stdin.buffer); print(task.model()(task.train()[0]).sum().item())"
    done = subprocess.run([sys.executable, "-c", code], input=parcel, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "12.0"


def test_siblings_of_a_task_file_can_be_imported(file: Path):
    (file.parent / "sibling_of_a_task.py").write_text("epochs = 9")
    file.write_text("from sibling_of_a_task import epochs\n" + TASK_FILE + "task = task.replace(epochs=epochs)")
    assert load_task(file).epochs == 9


@pytest.mark.parametrize(
    ("content", "variable", "message"),
    [
        (None, "", "there is no such file"),
        ("x = 1\ndef f(:\n", "", "line 2: SyntaxError: invalid syntax"),
        ("\n\nimport nosuchmodule_\n", "", "line 3: ModuleNotFoundError: No module named 'nosuchmodule_'"),
        ("def f():\n    1 / 0\nf()\n", "", "line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "", "line 1: SystemExit: 3"),
        ("raise ValueError('two\\nlines')\n", "", "line 1: ValueError: two"),
        ("other = 1\n", "", "my_task.py defines no `task`"),
        (TASK_FILE, ":nosuch", "my_task.py defines no `nosuch`; it defines task, named: use "),
        (TASK_FILE, ":number", "must be a manyhands.Task (found int)"),
        (TASK_FILE, ":broken", "failed: line 24: KeyError: 'no luck'"),
        ("task = 5\n", "", "`task` of "),
    ],
)
def test_bad_files_are_one_line(file: Path, content: str | None, variable: str, message: str):
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(BadInput) as caught:
        load_task(f"{file}{variable}")
    assert message in str(caught.value)
    assert "my_task.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_relative_import_is_answered_with_what_to_write(file: Path):
    """Python's own words, no known parent package, help nobody whose file stands in one."""
    file.write_text("from .model import Net")
    with pytest.raises(
        BadInput, match=r"line 1: ImportError: .*; a task file is loaded by itself: import files beside"
    ):
        load_task(file)


def test_a_folder_is_no_task(tmp_path: Path):
    with pytest.raises(BadInput, match="it is a folder"):
        load_task(tmp_path)


def test_a_file_that_failed_leaves_no_module_behind(file: Path):
    before = set(sys.modules)
    file.write_text("1 / 0")
    with pytest.raises(BadInput):
        load_task(file)
    assert not {name for name in set(sys.modules) - before if "manyhands_task" in name}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.py", r'cannot load a task from "nowhere.py": there is no such file'),
        ("./words.txt", r'cannot load a task from ".*words.txt": it is not a Python file'),
        ("broken.py", r"cannot load .*broken.py: "),
    ],
)
def test_files_that_are_no_tasks(spec: str, message: str) -> None:
    Path("words.txt").write_text("word")
    Path("broken.py").write_text("1 / 0")
    with pytest.raises(BadInput, match=message):
        load_task(spec)


def test_an_option_may_be_a_path(tmp_path: Path):
    """A slash, or a name that ends in .py, made a built-in task with options look like a task file."""
    path = tmp_path / "notes.py"
    path.write_bytes(b"x" * 600)
    task = load_task(f"gpt:text={path}")
    assert task.name == f"gpt:text={path}"
    assert len(task.train()[0]) == 1
