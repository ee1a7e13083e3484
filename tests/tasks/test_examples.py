"""Every example defines a task that loads, learns and says how to run it."""

from pathlib import Path

import pytest
import torch

from manyhands.strategies.job import StepSettings
from manyhands.tasks import load_task
from manyhands.training.build import build
from tests.conftest import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"from_transformers": "accelerate", "from_lightning": "lightning"}


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


@pytest.mark.soak
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # of other people's code
def test_an_example_learns(path: Path):
    assert f"examples/{path.name}" in path.read_text()
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem], reason=f"{NEEDS[path.stem]} is not installed")
    task = load_task(path)
    job = build(task, StepSettings())
    torch.manual_seed(1)
    optimizer = task.optimizer(job.model.named_parameters())
    losses = []
    for batch in torch.randperm(len(job.train))[: 25 * 40].split(40):
        input, target = job.train.gather(batch)
        optimizer.zero_grad()
        loss = job.calling.loss_of(job.calling.output(job.model, input), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-8:]) < 0.95 * sum(losses[:8])
