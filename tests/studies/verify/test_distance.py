"""Differences are judged against what one rounding does, tensor by tensor."""

from __future__ import annotations

import torch

from manyhands.studies.verify.distance import distance, noise_of


def test_what_one_rounding_explains_is_the_same_and_what_it_does_not_is_named() -> None:
    one = {"first": torch.ones(4), "second": torch.ones(4)}
    noise = noise_of(one, [{"first": torch.ones(4) + 1e-5, "second": torch.ones(4) + 1e-7}])
    near = distance(one, {"first": torch.ones(4) + 1e-4, "second": torch.ones(4)}, noise, False, 1.0)
    assert near.same
    assert near.difference < near.tolerance
    far = distance(one, {"first": torch.ones(4) + 1e-4, "second": torch.ones(4) + 1e-3}, noise, False, 1.0)
    assert not far.same
    assert far.first == "second"
    assert far.difference > far.tolerance


def test_the_tolerance_is_not_a_constant() -> None:
    one, other = {"weight": torch.ones(4)}, {"weight": torch.ones(4) + 1e-4}
    calm, chaotic = noise_of(one, [{"weight": torch.ones(4) + 1e-7}]), noise_of(one, [{"weight": torch.ones(4) + 1e-4}])
    assert not distance(one, other, calm, False, 1.0).same
    assert distance(one, other, chaotic, False, 1.0).same
    assert not distance(one, other, chaotic, False, 1e-5).same  # but it has a limit


def test_numbers_that_are_not_finite_missing_tensors_and_counters_differ() -> None:
    one = {"weight": torch.ones(2), "steps": torch.tensor(3)}
    for other in (
        {"weight": torch.tensor([1.0, float("nan")]), "steps": torch.tensor(3)},
        {"steps": torch.tensor(3)},
        {"weight": torch.ones(2), "steps": torch.tensor(4)},
    ):
        assert not distance(one, other, {"weight": 1e-7}, False, 1.0).same
