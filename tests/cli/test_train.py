"""`manyhands train` and `manyhands evaluate` of a task with an average of its weights and a metric of its own."""

from __future__ import annotations

import json
from pathlib import Path

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
    assert "here holds no averaged weights; its task must say ema=0.999, say, when it is trained" in err
