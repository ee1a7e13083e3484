"""`manyhands train` and `manyhands evaluate`: a task with an average of its weights and a metric of its own, one that
prints, one that was interrupted, one for more ranks than there is room for."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manyhands.cli.interrupted import resume_command, show_interrupted
from manyhands.errors import BadInput
from manyhands.studies.doctor import crowd
from tests.conftest import Command

TASK = """
from functools import partial
import torch, manyhands as mh

class Largest:
    def __init__(self): self.seen = torch.zeros(0)
    def update(self, output, target): self.seen = torch.cat([self.seen, output.flatten()])
    def compute(self): return {"largest": self.seen.max(), "both": torch.stack([self.seen.min(), self.seen.max()])}

x = torch.linspace(-1, 1, 640).reshape(64, 10)
task = mh.Task(model=lambda: torch.nn.Linear(10, 2), train=(x, (x.sum(1) > 0).long()), test=(x, (x.sum(1) > 0).long()),
               loss=torch.nn.functional.cross_entropy, optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=8,
               ema=0.9, epochs=2, metrics={"": Largest})
plain = task.replace(ema=None, metrics=None)
"""


def test_averaged_weights_and_metrics_are_said_and_evaluated_again(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TASK)
    code, out, err = command("train", "mine.py", "--quiet", "--run-dir", "here", "--device", "cpu")
    assert code == 0, err
    assert "\n  test: loss 0." in out
    assert "\n  test of the averaged weights: loss 0." in out
    assert ", largest 0." in out or ", largest 1." in out
    code, out, err = command("evaluate", "here", "--ema", "--eval-batch-size", "5", "--json", "--device", "cpu")
    found, record = json.loads(out), json.loads((tmp_path / "here/run.json").read_text())
    assert abs(found["loss"] - record["ema"]["test"]["loss"]) < 1e-6
    assert abs(found["loss"] - record["test"]["loss"]) > 1e-4
    assert found["both"][1] == found["largest"]
    code, out, err = command("evaluate", "here", "--ema", "--device", "cpu")
    assert "(averaged weights): 64 test samples" in out
    assert "\n  both [" in out

    command("train", "mine.py:plain", "--quiet", "--run-dir", "here", "--max-steps", "1", "--device", "cpu")
    code, out, err = command("evaluate", "here", "--ema")
    assert (code, out) == (2, "")
    assert "here holds no averaged weights; train the task with ema=0.999, for example" in err


NOISE = """
import os
print("import"); os.write(1, b"import below Python\\n")

class Loud(torch.nn.Linear):
    def forward(self, x):
        print("model", flush=True); os.write(1, b"model below Python\\n")
        return super().forward(x)

def data():
    print("factory")
    return x, (x.sum(1) > 0).long()

task = plain.replace(model=lambda: Loud(10, 2), train=data, test=data)
"""


def test_what_a_task_prints_is_not_in_the_document(tmp_path: Path) -> None:
    """Standard output held the task's own lines before the JSON, and those of ranks within it."""
    (tmp_path / "loud.py").write_text(TASK + NOISE)
    words = ["train", "loud.py", "--json", "--max-steps", "2", "--device", "cpu"]
    done = subprocess.run([sys.executable, "-m", "manyhands", *words], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["steps"] == 2
    for line in ("import", "import below Python", "factory", "model", "model below Python"):
        assert line in done.stderr.splitlines()


def test_after_ctrl_c_the_command_to_resume_is_printed_and_works(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(TASK)
    words = ["train", "mine.py:plain", "--device", "cpu", "--quiet", "--checkpoint-every", "2"]
    assert command(*words, "--run-dir", "here", "--max-steps", "4")[0] == 0
    monkeypatch.setattr(sys, "argv", ["manyhands", *words])
    ending = KeyboardInterrupt()
    ending.run = type("Stopped", (), {"steps": 0})()  # type: ignore[attr-defined]
    show_interrupted(ending, Path("here"), as_json=False)
    told = capfd.readouterr().err
    start = "manyhands: to resume from step 4: "
    assert told.startswith(start)
    code, _, err = command(*shlex.split(told.removeprefix(start))[1:], "--json")
    assert code == 0, err
    record = json.loads((tmp_path / "here/run.json").read_text())
    assert (record["steps"], record["resumed_from"]["step"]) == (16, 4)


def test_the_command_to_resume_has_everything_once() -> None:
    words = ["train", "my task.py", "--run-dir=here", "--resume"]
    assert resume_command(words, Path("here")) == "manyhands train 'my task.py' --run-dir=here --resume"
    assert resume_command(["train"], Path("a b")) == "manyhands train --run-dir 'a b' --resume"


def test_far_more_ranks_than_cores_are_reported_before_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "available_cores", lambda: 2)
    monkeypatch.setattr(crowd, "free_memory", lambda: 16e9)
    assert crowd.crowd(4, 4, None, None) is None
    assert crowd.crowd(200, 200, None, None) == (
        "200 ranks x 1 thread on 2 cores: ranks take turns (100 per core), so steps are far slower than with --ranks 2; "
        "200 processes need at least 13.4 GB of the 16.0 GB of memory that are free"
    )
    assert "x 1 thread, with 200 loader workers on 2 cores" in str(crowd.crowd(200, 200, None, 1))
    monkeypatch.setattr(crowd, "free_memory", lambda: 4e9)
    with pytest.raises(
        BadInput, match=r"200 processes need at least 13.4 GB of memory, but 4.0 GB are free; use --ranks 59"
    ):
        crowd.crowd(200, 200, None, None)


def test_the_line_comes_from_train_and_compare(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where memory cannot hold the processes, nothing is started."""
    monkeypatch.setattr(crowd, "free_memory", lambda: 1e6)
    for words in (["train", "glyphs", "ddp", "--ranks", "5000"], ["compare", "glyphs", "ddp", "--ranks", "1,5000"]):
        code, out, err = command(*words)
        assert (code, out) == (2, "")
        assert "5000 processes need at least" in err
        assert len(err.splitlines()) == 1
    assert not os.path.exists("runs")


def test_timings_say_where_the_time_went(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TASK)
    code, out, err = command("train", "mine.py:plain", "--quiet", "--device", "cpu", "--timings", "--max-steps", "2")
    assert code == 0, err
    line = out.strip().splitlines()[-1]
    assert re.fullmatch(
        r"  \d+\.\d s since the start of the command: before the fit \d+\.\d(, [a-z]+ \d+\.\d)*", line
    ), line


def test_the_age_of_a_command_is_not_that_of_a_rounded_boot() -> None:
    """By the machine's boot time, a whole number of seconds, a command was up to a second older than it was."""
    code = "from manyhands.cli.train import seconds_of_this_process; print(seconds_of_this_process())"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert 0 < float(done.stdout) < time.monotonic() - began + 0.02  # the kernel counts hundredths


def test_torch_is_imported_without_looking_for_garbage() -> None:
    """Python looked through all that torch's import makes again and again, which took a tenth of its time."""
    code = """
import gc, sys
looks = []
gc.callbacks.append(lambda phase, info: looks.append("torch" in sys.modules))
from manyhands.cli.inputs import begin
begin("glyphs", "single")
print("torch" in sys.modules, any(looks), gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True False True\n"


def test_ranks_import_torch_while_the_command_does(tmp_path: Path) -> None:
    """The server of the ranks was started when the command had imported torch itself: a second later than it could be."""
    code = """
import sys
from manyhands.world.launch import fork_server
import manyhands.cli.inputs as inputs
def warm_up(preload=(), wait=None):
    print("torch" in sys.modules)
    raise SystemExit
inputs.warm_up = warm_up
sys.argv = ["manyhands", *sys.argv[1:]]
from manyhands.cli import main
main()
"""
    for words in (["train", "glyphs", "ddp"], ["compare"], ["plan"], ["diagnose"], ["tune"], ["verify"], ["chaos"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == "False\n", (words, done.stderr)
