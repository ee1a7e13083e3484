"""`manyhands run` of a script that trains on the GPU: times come from the device's own events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT, Command

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_a_plain_loop_on_the_gpu(command: Command) -> None:
    script = ROOT / "tests" / "bridges" / "scripts" / "mnist_loop.py"
    code, out, err = command("run", "--json", "--run-dir", "r", str(script), "--samples", "6400", "--epochs", "2")
    assert code == 0, err
    record = json.loads(out)
    assert (record["device"], record["steps"], record["samples"]) == ("cuda", 200, 12800)
    phases = {name: value for name, value in record["phases_ms"].items() if value is not None}
    assert {"load", "transfer", "forward", "backward", "update", "other"} <= set(phases)
    assert all(phases[name] > 0 for name in ("load", "transfer", "forward", "backward", "update"))
    assert record["seconds"] == pytest.approx(sum(phases.values()) * 200 / 1000, rel=0.01)
    assert len(record["losses"]) == 200
    assert all(loss is not None for loss in record["losses"])
    assert json.loads(Path("r/timeline.json").read_text())
