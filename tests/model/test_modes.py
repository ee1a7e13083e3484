"""Modules that were put into eval mode stay there; a whole model in eval mode is trained, and the record says so."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import manyhands as mh
from manyhands.model.modes import keep_eval_modes, mode_note

DROPOUT, NORM = 'Dropout "3"', 'BatchNorm1d "1"'


def make() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


def with_frozen_norm() -> nn.Sequential:
    model = make()
    model[1].eval().requires_grad_(False)
    return model


def task(model: object) -> mh.Task:
    x = 3 * torch.randn(96, 4, generator=torch.Generator().manual_seed(0)) + 1
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    return mh.Task(model, (x, (x.sum(1) > 4).long()), F.cross_entropy, sgd, batch_size=16, name="modes")  # type: ignore[arg-type]


def test_what_was_put_into_eval_mode_stays_there() -> None:
    model = make()
    model[1].eval()
    model[3].eval()
    assert keep_eval_modes(model) == [NORM, DROPOUT]
    for again in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        again.train()
        assert [module.training for module in again] == [True, False, True, False, True]
        again.eval()
        again.train()
        assert [module.training for module in again] == [True, False, True, False, True]


def test_a_part_with_parts_stays_as_one() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), nn.Linear(2, 2))
    model[0].eval()
    assert keep_eval_modes(model) == ['Sequential "0"']
    assert not model.train()[0][1].training
    assert mode_note(model, ['Sequential "0"']) == 'Sequential "0" stays in eval mode, as given'


def test_a_whole_model_in_eval_mode_is_trained_and_said() -> None:
    model = make().eval()
    assert keep_eval_modes(model) == []
    assert "was given in eval mode and is trained in training mode" in (mode_note(model, []) or "")
    assert all(module.training for module in model.train().modules())
    assert mode_note(model, []) is None
    plain = nn.Linear(2, 2).eval()
    assert mode_note(plain, keep_eval_modes(plain)) is None  # it computes the same in either mode


def test_a_kind_that_is_handed_out_in_eval_mode_was_not_put_there() -> None:
    """Models of transformers come in eval mode from a file; every loop trains them in training mode."""

    class Pretrained(nn.Sequential):
        @classmethod
        def from_pretrained(cls) -> Pretrained:
            return cls(nn.Linear(2, 2), nn.Dropout()).eval()

    wrapped = nn.Sequential(Pretrained.from_pretrained(), nn.Linear(2, 2))
    assert keep_eval_modes(wrapped) == []
    alone = Pretrained.from_pretrained()
    assert mode_note(alone, keep_eval_modes(alone)) is None


@pytest.mark.parametrize("strategy", ["single", "ddp", "pipeline"])
def test_a_frozen_batchnorm_keeps_its_statistics(strategy: str) -> None:
    """Its running statistics were updated under every strategy, whatever mode it was given in."""
    for model in (with_frozen_norm, with_frozen_norm()):
        run = mh.fit(task(model), strategy, ranks=1 if strategy == "single" else 2, threads=1, progress=False)
        assert run.weights is not None
        assert torch.equal(run.weights["1.running_mean"], torch.zeros(8))
        assert f"{NORM} stays in eval mode, as given" in run.notes
