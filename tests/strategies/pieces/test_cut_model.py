"""What a model is cut with: an example of the job's samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from manyhands.strategies import make_strategy
from manyhands.strategies.job import StepSettings
from manyhands.strategies.pieces import cut_model as module
from manyhands.training.build import build
from tests.conftest import make_task


def test_a_model_whose_passes_take_long_is_cut_with_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting made two dozen passes with 32 samples: where one took 3 s, a pipeline started after a minute and a half."""
    job = build(make_task(batch_size=64), StepSettings())
    cut = module.cut_model(make_strategy("pipeline", 2), job, 2, "time")
    assert cut.samples == 32
    monkeypatch.setattr(module, "FORWARD_SECONDS", 1e-9)
    fewer = module.cut_model(make_strategy("pipeline", 2), job, 2, "time")
    assert fewer.samples == 4
    sizes = [[layer.activation_bytes / one.samples for layer in one.layers] for one in (cut, fewer)]
    assert sizes[0] == sizes[1]


class InGroups(nn.Module):
    """Takes its samples in groups of so many."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.first, self.last = size, nn.Linear(20, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        groups = self.first(x.flatten(1)).view(-1, self.size, 16)
        return self.last(torch.relu(groups - groups.mean(1, keepdim=True)).flatten(0, 1))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_model_that_takes_samples_in_groups_is_cut(size: int) -> None:
    """Looked through with three samples, models that pair theirs were refused."""
    job = build(
        make_task(model=lambda: InGroups(size), train=(torch.randn(64, 20), torch.zeros(64).long()), batch_size=64),
        StepSettings(),
    )
    assert module.cut_model(make_strategy("pipeline", 2), job, 2, "time").samples == 32
