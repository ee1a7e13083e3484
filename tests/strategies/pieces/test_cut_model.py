"""What a model is cut with: an example of the job's samples."""

from __future__ import annotations

import pytest

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
    assert fewer.samples == 3
    sizes = [[layer.activation_bytes / one.samples for layer in one.layers] for one in (cut, fewer)]
    assert sizes[0] == sizes[1]
