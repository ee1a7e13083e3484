"""Every example defines a task that loads, learns and says how to run it."""

from pathlib import Path

import pytest
import torch

from manyhands.data.sources import make_source
from manyhands.tasks import load_task
from tests.conftest import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_learns(path: Path):
    assert f"examples/{path.name}" in path.read_text()
    task = load_task(path)
    torch.manual_seed(task.seed)
    model = task.model()
    source = make_source(task.train() if callable(task.train) else task.train, task.collate, "train")
    optimizer = task.optimizer(model.named_parameters())
    losses = []
    for batch in torch.randperm(len(source))[: 25 * 40].split(40):
        input, target = source.gather(batch)
        optimizer.zero_grad()
        loss = task.loss(model(input), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3])
