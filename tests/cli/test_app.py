"""The command line: one JSON document, one line for each refusal, exit codes that tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.inputs import recorded_task
from manyhands.errors import BadInput
from tests.conftest import Command, pressed_once

SMALL = "glyphs:train=640,test=100"


def test_train_prints_the_record_and_keeps_the_run(command: Command, tmp_path: Path) -> None:
    code, out, _err = command("train", SMALL, "ddp", "--ranks", "2", "--max-steps", "10", "--json")
    record = json.loads(out)
    assert code == 0
    assert (record["strategy"], record["steps"], record["task"]) == ("ddp", 10, SMALL)
    assert record["seconds"] == pytest.approx(record["steps"] * sum(record["phases_ms"].values()) / 1000, rel=0.02)
    assert record["command"] == f"manyhands train {SMALL} ddp --ranks 2 --max-steps 10 --json"
    (folder,) = (tmp_path / "runs").iterdir()
    assert {"run.json", "weights.safetensors"} <= {entry.name for entry in folder.iterdir()}
    code, out, _ = command("evaluate", str(folder), "--json")
    assert json.loads(out)["accuracy"] == record["test"]["accuracy"]
    code, out, _ = command("evaluate", str(folder))
    assert code == 0
    assert "accuracy" in out


def test_train_in_words_fits_80_columns(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command("train", SMALL, "ddp", "--ranks", "2", "--max-steps", "10", "--quiet")
    assert code == 0
    assert "where the" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_train_options_reach_the_fit(command: Command) -> None:
    words = [
        "train",
        SMALL,
        "--batch-size",
        "20",
        "--seed",
        "3",
        "--epochs",
        "2",
        "--max-steps",
        "4",
        "--accumulate",
        "2",
    ]
    code, out, _ = command(*words, "--clip", "1.0", "--precision", "bf16", "--threads", "1", "--json", "--quiet")
    record = json.loads(out)
    assert code == 0
    found = {key: record[key] for key in ("batch_size", "seed", "updates", "precision", "threads", "strategy")}
    assert found == {"batch_size": 20, "seed": 3, "updates": 2, "precision": "bf16", "threads": 1, "strategy": "single"}


BROKEN = "import nothing_of_this_name\n"
NO_TASK = "x = 1\n"
NOT_A_TASK = "task = 3\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nosuch"], 'no task named "nosuch"'),
        (["train", "glphs"], 'no task named "glphs"; did you mean "glyphs"?'),
        (["train", "glyphs", "dpp"], 'no strategy named "dpp"; did you mean "ddp"?'),
        (["train", "glyphs", "ddp", "--ranks", "0"], "ranks must be a whole number of at least 1 (found 0)"),
        (["train", "glyphs", "--batch-size", "-1"], "batch_size must be a whole number of at least 1 (found -1)"),
        (["train", "glyphs", "ddp", "--ranks", "two"], "--ranks"),
        (["train", "glyphs", "--resume"], "--resume needs --run-dir, the folder of the run to continue"),
        (["train", "glyphs", "ddp:chunks=3"], 'ddp has no option "chunks"'),
        (["train", "glyphs", "--precision", "fp64"], '--precision takes fp32 or bf16 (found "fp64")'),
        (["train", "glyphs", "--device", "tpu"], 'no device named "tpu" in device=tpu'),
        (["compare", "glyphs", "--ranks", "x"], "--ranks takes a number or a list such as 1,2,4 (found 'x')"),
        (["train", "glyphs", "--nosuch", "1"], "--nosuch"),
        (["train", "missing.py"], "missing.py"),
        (["train", "broken.py"], "nothing_of_this_name"),
        (["train", "no_task.py"], "defines no"),
        (["train", "not_a_task.py"], "not_a_task.py"),
        (["train", "glyphs", "--sample", "10"], "cannot generate text"),
        (["compare", "glyphs", "single", "dpp"], 'no strategy named "dpp"'),
        (["compare", "glyphs", "--rounds", "-1"], "rounds must be 0 or more"),
        (["compare", "glyphs", "--time-limit", "0"], "time_limit must be above 0 seconds (found 0.0)"),
        (["compare", "glyphs", "--target", "95"], "--target takes an accuracy from 0 to 1 (found 95; 95 % is 0.95)"),
        (["compare", "glyphs", "--target", "nan"], "--target takes an accuracy from 0 to 1 (found nan)"),
        (
            ["compare", "glyphs", "--run-dir", "broken.py/rows"],
            "the run folder broken.py/rows cannot be written (Not a directory); use another --run-dir",
        ),
        (["evaluate", "nowhere"], "no run at nowhere"),
        (
            ["chaos", "glyphs", "--rank", "1"],
            "--rank and --step aim one fault; give --fault and one strategy with them",
        ),
        (["report", "nowhere"], "nowhere"),
        (["tran"], "tran"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(command: Command, tmp_path: Path, words: list[str], message: str) -> None:
    for name, text in (("broken.py", BROKEN), ("no_task.py", NO_TASK), ("not_a_task.py", NOT_A_TASK)):
        (tmp_path / name).write_text(text)
    code, out, err = command(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_is_one_line(command: Command) -> None:
    code, _, err = command("train", "glyphs", "--device", "cuda")
    assert code == 2
    assert "no GPU is available" in err
    assert len(err.strip().splitlines()) == 1


def test_a_failing_run_exits_1_with_its_traceback(command: Command, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "import torch, functools, manyhands as mh\n"
        "class Net(torch.nn.Linear):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        self.calls += 1\n"
        "        if self.calls == 3: raise RuntimeError('planted')\n"
        "        return super().forward(x)\n"
        "x = torch.randn(64, 4)\n"
        "task = mh.Task(lambda: Net(4, 2), (x, (x[:, 0] > 0).long()), torch.nn.functional.cross_entropy,\n"
        "               functools.partial(torch.optim.SGD, lr=0.1), batch_size=8)\n"
    )
    code, out, err = command("train", "failing.py", "--json", "--quiet")
    assert code == 1
    assert json.loads(out)["status"] == "failed"
    assert err.strip().splitlines()[-1] == "manyhands: rank 0 of 1 failed in step 3, forward: RuntimeError: planted"
    assert "raise RuntimeError" in err


def test_a_task_file_with_sibling_imports(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sibling_net.py").write_text("import torch\nclass Net(torch.nn.Linear):\n    pass\n")
    (tmp_path / "mine.py").write_text(
        "import torch, functools, manyhands as mh\nfrom sibling_net import Net\nx = torch.randn(64, 4)\n"
        "other = mh.Task(lambda: Net(4, 2), (x, (x[:, 0] > 0).long()), torch.nn.functional.cross_entropy,\n"
        "                functools.partial(torch.optim.SGD, lr=0.1), batch_size=8, test=(x, (x[:, 0] > 0).long()))\n"
    )
    code, out, err = command("train", "mine.py:other", "ddp", "--ranks", "2", "--json", "--quiet", "--run-dir", "here")
    assert code == 0, err
    assert json.loads(out)["steps"] == 8
    code, out, _ = command("evaluate", "here", "--json")
    assert json.loads(out)["samples"] == 64

    marker = tmp_path / "it_ran"
    monkeypatch.chdir(tmp_path / "here")  # the task lies outside now: a record from anywhere must not run code
    with (tmp_path / "mine.py").open("a") as file:
        file.write(f"open({str(marker)!r}, 'w').close()\n")
    code, out, err = command("evaluate", ".")
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
    assert "mine.py, outside of the current folder" in err
    assert f"pass --task {tmp_path / 'mine.py'}:other" in err
    assert not marker.exists()
    code, out, err = command("evaluate", ".", "--task", "../mine.py:other", "--json")
    assert code == 0, err
    assert json.loads(out)["samples"] == 64
    assert marker.exists()


@pytest.mark.parametrize("spec", ["/somewhere/bad.py", "../bad.py:task", "/somewhere/compiled.pyc", "./../bad.so"])
def test_whatever_would_be_loaded_from_outside_is_refused(spec: str) -> None:
    with pytest.raises(BadInput, match="outside of the current folder"):
        recorded_task(spec)


def test_lists(command: Command) -> None:
    code, out, _ = command("tasks")
    assert code == 0
    assert all(name in out for name in ("glyphs", "mnist", "cifar10", "reviews", "shakespeare", "gpt", "sparse"))
    code, out, _ = command("strategies", "--json")
    assert code == 0
    rows: list[dict[str, Any]] = json.loads(out)
    assert {"name": "ddp", "exact": True}.items() <= next(row for row in rows if row["name"] == "ddp").items()
    code, out, _ = command("strategies")
    assert code == 0
    assert "hogwild" in out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from manyhands.cli.app import main; sys.argv = ['manyhands', 'train', '--help']\n"
        "try: main()\n"
        "except SystemExit: print({'torch', 'numpy', 'jinja2', 'psutil', 'safetensors'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--ranks" in done.stdout
    assert done.stdout.splitlines()[-1] == "set()"


def as_program(*words: str, code: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own, with `code` before it."""
    run = f"import sys; sys.argv = ['manyhands', *sys.argv[1:]]\n{code}\nfrom manyhands.cli import main; main()"
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "check": False, **options}
    return subprocess.run([sys.executable, "-c", run, *words], **options)


def test_a_program_ends_at_once_but_in_order() -> None:
    """Python took torch apart before a command was over, half a second of nothing; what others registered still runs."""
    code = """
class Slow:
    def __del__(self):
        print("taken apart")
kept = Slow()
"""
    for words, rc in ((["--version"], 0), (["train", "nosuch"], 2)):
        done = as_program(*words, code=code)
        assert (done.returncode, "taken apart" in done.stdout) == (rc, False)
    late = "import atexit, manyhands.cli.app as app; run = app.main\n"
    late += "app.main = lambda: (atexit.register(print, 'in order'), run())"
    assert as_program("--version", code=late).stdout.splitlines()[-1] == "in order"
    crash = "import manyhands.cli.app as app\ndef boom(): raise ValueError('boom')\napp.main = boom"
    done = as_program(code=crash)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: boom\n")


def test_ctrl_c_before_a_command_begins_is_one_line() -> None:
    """In the first tenth of a second, while the command line was imported, it was a traceback of forty lines."""
    code = """
class Pressed:
    def find_spec(self, name, *rest):
        if name == "manyhands.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
"""
    done = as_program("tasks", code=code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "manyhands: interrupted\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a full disk, on Linux")
def test_output_that_cannot_be_written_is_said_in_one_line() -> None:
    """`manyhands tasks > FILE` on a full disk ended in a traceback of forty lines; short output was lost in silence."""
    with open("/dev/full", "w") as full:
        for words in (["tasks"], ["--version"], ["strategies", "--json"]):
            done = as_program(*words, stdout=full)
            assert done.returncode == 1
            assert done.stderr == "manyhands: the output could not be written: [Errno 28] No space left on device\n"


def test_ctrl_c_exits_130_and_leaves_nothing(nothing_left: None, command: Command) -> None:
    """In a process of its own: bridges/test_scripts.py."""
    with pressed_once("r/live.json"):
        code, _, err = command("train", SMALL, "ddp", "--ranks", "2", "--epochs", "100000", "--run-dir", "r")
    assert code == 130
    assert err.strip().splitlines()[-2:] == [
        "manyhands: no checkpoint was written, so this run cannot be resumed; with --checkpoint-every 30s there is a "
        "checkpoint every 30 seconds",
        "manyhands: interrupted",
    ]
    stopped = json.loads(Path("r/run.json").read_text())
    assert stopped["status"] == "stopped"
    assert stopped["steps"] > 0
    assert stopped["seconds"] == pytest.approx(stopped["steps"] * sum(stopped["phases_ms"].values()) / 1000)
    with pressed_once("s/live.json"):
        code, out, _ = command("train", SMALL, "--epochs", "100000", "--run-dir", "s", "--json", "--quiet")
    assert (code, json.loads(out)["status"]) == (130, "stopped")
