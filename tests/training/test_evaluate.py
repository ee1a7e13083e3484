"""Weights on data: what a task does not have cannot be evaluated on."""

from __future__ import annotations

import pytest

import manyhands as mh
from tests.conftest import make_task, mlp


def test_a_task_without_test_data() -> None:
    weights = mlp().state_dict()
    with pytest.raises(mh.BadInput, match="this task has no test data to evaluate on"):
        mh.evaluate(make_task(test=None), weights)
    assert mh.evaluate(make_task(test=None), weights, data="train")["samples"] == 1003
