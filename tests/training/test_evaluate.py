"""Weights on data: what a task does not have cannot be evaluated on."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

import manyhands as mh
from tests.conftest import make_task, mlp


def test_a_task_without_test_data() -> None:
    weights = mlp().state_dict()
    with pytest.raises(mh.BadInput, match="this task has no test data to evaluate on"):
        mh.evaluate(make_task(test=None), weights)
    assert mh.evaluate(make_task(test=None), weights, data="train")["samples"] == 1003


class Counting(torch.nn.Module):
    """Notes how many samples pass it at a time."""

    sizes: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        return self.inner(x)


def test_samples_pass_the_model_by_the_batch_size_or_as_many_as_asked() -> None:
    """A thousand at a time, whatever the task: a tiny GPT-2 with a real vocabulary took 4.5 GB."""
    weights = Counting().state_dict()
    results = []
    for task, asked, sizes in (
        (make_task(model=Counting), None, [30] * 33 + [13]),
        (make_task(model=Counting, eval_batch_size=1000), None, [1000, 3]),
        (make_task(model=Counting, eval_batch_size=1000), 502, [502, 501]),
    ):
        Counting.sizes.clear()
        results.append(mh.evaluate(task, weights, eval_batch_size=asked))
        assert [size for size in Counting.sizes if size > 2] == sizes  # two samples are tried before
    assert results[0]["per_class"] == results[1]["per_class"]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-6)
    with pytest.raises(mh.BadInput, match=r"task.eval_batch_size must be a whole number of at least 1 \(found 0\)"):
        mh.evaluate(task, weights, eval_batch_size=0)


class Language(torch.nn.Module):
    """As models of transformers: named outputs, and a loss of its own against the next token, or the same one."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.ahead, self.scores = ahead, torch.nn.Embedding(7, 7)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits, stop = self.scores(x), x.shape[1] - self.ahead
        goal = torch.where(x == 3, -100, x)[:, self.ahead :]
        return {"loss": F.cross_entropy(logits[:, :stop].flatten(0, 1), goal.flatten()), "logits": logits}


@pytest.mark.parametrize("ahead", [0, 1])
def test_accuracy_of_a_model_that_names_its_outputs(ahead: int) -> None:
    """Language models compare the scores of a place with the next token: accuracy in place was that of another question."""
    x = torch.arange(6 * 40).reshape(40, 6) % 7
    y = torch.where(x == 3, -100, x)
    model = Language(ahead)
    model.scores.weight.data = 9 * torch.eye(7).roll(ahead, 1)  # knows the answer,
    model.scores.weight.data[5] = -model.scores.weight.data[5]  # but for what it says after (or at) a 5
    task = make_task(model=partial(Language, ahead), train=(x, y), test=(x, y), loss=None, batch_size=7)
    result = mh.evaluate(task, model.state_dict())
    asked = y[:, ahead:]
    assert result["accuracy"] == pytest.approx(
        float(((x != 5)[:, : 6 - ahead] & (asked >= 0)).sum() / (asked >= 0).sum())
    )
    assert result["per_class"] == {str(n): float(n != 5 + ahead) for n in range(7) if n != 3}
