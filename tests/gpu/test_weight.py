"""Means over units on a GPU: captured or not, one rank or several, the weights are those that the CPU reaches."""

from __future__ import annotations

import pytest
import torch

import manyhands as mh
from tests.strategies.test_weight import language, over_clamped

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def fitted(strategy: str, device: str, ranks: int, loss: object = None, **settings: object) -> mh.Run:
    task = language(epochs=3, **({} if loss is None else {"loss": loss}))
    return mh.fit(task, strategy, ranks=ranks, device=device, progress=False, threads=1, **settings)  # type: ignore[arg-type]


def apart(one: mh.Run, other: mh.Run) -> float:
    assert one.weights is not None
    assert other.weights is not None
    return max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("capture", ["auto", "off"])
def test_single(accumulate: int, capture: str) -> None:
    """A recorded step counts its units on the device, and scales the accumulated gradient there."""
    expected = fitted("single", "cpu", 1, accumulate=accumulate)
    found = fitted("single", "cuda", 1, accumulate=accumulate, capture=capture)
    assert apart(expected, found) <= 1e-4
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)
    if capture == "auto":
        assert found.capture is not None
        assert found.capture["steps"] > 0, found.notes


@pytest.mark.parametrize(
    ("strategy", "ranks"), [("ddp", 2), ("pipeline:chunks=4", 2), ("balanced_data_parallel", 2), ("locked", 2)]
)
def test_parts_without_a_unit(strategy: str, ranks: int) -> None:
    """Their gradient is 0 / 0, and nobody asks the device whether it is before it is dropped."""
    expected = fitted("single", "cpu", 1, over_clamped)
    found = fitted(strategy, "cuda", ranks, over_clamped)
    assert apart(expected, found) <= 1e-4
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)
