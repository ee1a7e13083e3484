"""Accuracy: right answers by class, in a table of fixed size."""

from __future__ import annotations

import pytest
import torch

from manyhands.training.accuracy import MOST_CLASSES, Accuracy


def result(*batches: tuple[torch.Tensor, torch.Tensor]) -> dict[str, object]:
    accuracy = Accuracy()
    for output, target in batches:
        accuracy.add(output, target)
    return accuracy.result()


def scores(predicted: list[int], classes: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(predicted), classes).float()


def test_targets_below_zero_are_ignored_and_classes_may_come_late() -> None:
    found = result((scores([0, 1, 1], 3), torch.tensor([0, 0, -100])), (scores([2, 2, 0], 3), torch.tensor([2, 1, -1])))
    assert found == {"accuracy": 0.5, "per_class": {"0": 0.5, "1": 0.0, "2": 1.0}}


@pytest.mark.parametrize(("highest", "listed"), [(MOST_CLASSES - 1, True), (MOST_CLASSES, False)])
def test_of_a_vocabulary_only_the_whole_is_told(highest: int, listed: bool) -> None:
    found = result((scores([5, highest, highest], highest + 1), torch.tensor([5, highest, 0])))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["per_class"] == ({"0": 0.0, "5": 1.0, str(highest): 1.0} if listed else {})


def test_targets_beyond_the_models_classes_are_never_right() -> None:
    assert result((scores([0, 1], 2), torch.tensor([0, 7]))) == {"accuracy": 0.5, "per_class": {"0": 1.0, "7": 0.0}}


def test_one_logit_a_sample_and_targets_of_any_integers() -> None:
    for kind in (torch.bool, torch.uint8, torch.int64):
        found = result((torch.tensor([2.0, -1.0, 3.0]), torch.tensor([1, 0, 0]).to(kind)))
        assert found == {"accuracy": pytest.approx(2 / 3), "per_class": {"0": 0.5, "1": 1.0}}


def test_no_class_numbers_no_accuracy() -> None:
    nothing = {"accuracy": None, "per_class": {}}
    assert result() == result((torch.zeros(4, 3), torch.zeros(4, 3))) == nothing
    assert result((torch.zeros(4, 3), torch.tensor([-100] * 4))) == nothing


def test_empty_again() -> None:
    accuracy = Accuracy()
    accuracy.add(scores([1], 2), torch.tensor([1]))
    accuracy.reset()
    accuracy.add(scores([0], 2), torch.tensor([1]))
    assert accuracy.result()["accuracy"] == 0.0


@pytest.mark.parametrize("classes_at", [1, 2])
def test_the_loss_tells_which_side_of_a_square_counts_the_classes(classes_at: int) -> None:
    """A model of bytes on sequences of 256 was judged by the wrong side of its 256 x 256 scores: 0.4 % right, whatever it knew."""
    torch.manual_seed(0)
    target = torch.randint(4, (3, 4))
    target[0, 0] = -100
    scores = 5.0 * torch.nn.functional.one_hot(target.clamp(min=0), 4).float().movedim(-1, classes_at)
    loss = torch.nn.functional.cross_entropy(scores.movedim(classes_at, 1), target)
    accuracy = Accuracy()
    accuracy.add(scores, target, loss)
    assert accuracy.result()["accuracy"] == 1.0
    accuracy.reset()
    accuracy.add(scores, target, torch.tensor(float("nan")))  # known by now: no further look at a loss
    assert accuracy.result()["accuracy"] == 1.0
