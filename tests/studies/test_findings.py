"""What is wrong with a task under any strategy: every finding with a plant, and a healthy twin that gives none."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ExponentialLR, LRScheduler
from torch.utils.data import Dataset, Subset, TensorDataset

import manyhands as mh
from manyhands.studies.findings import findings
from tests.conftest import ROOT

ZOO = sorted((ROOT / "benchmarks/zoo/correctness").glob("finding_*.py"))
X = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
SGD = functools.partial(torch.optim.SGD, lr=0.1)


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def task(**changes: Any) -> mh.Task:
    known = {"model": make, "train": (X, Y), "loss": F.cross_entropy, "optimizer": SGD, "batch_size": 10, "epochs": 20}
    return mh.Task(**{**known, **changes})


def names(**changes: Any) -> list[str]:
    return [found["name"] for found in findings(task(**changes))]


@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_plants_of_the_zoo_are_named_and_their_twins_are_not(path: Path) -> None:
    cause = next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("CAUSE"))
    found = findings(mh.load_task(str(path)))
    assert [finding["name"] for finding in found] == [cause]
    assert set(found[0]) == {"name", "message", "advice"}
    assert findings(mh.load_task(f"{path}:healthy")) == []


def test_nothing_stands_out_of_a_plain_task() -> None:
    assert findings(task(test=(torch.randn(50, 6), torch.zeros(50, dtype=torch.int64)))) == []


def test_rates_that_come_back_are_not_gone() -> None:
    def restarts(optimizer: torch.optim.Optimizer, updates: int) -> LRScheduler:
        return CosineAnnealingWarmRestarts(optimizer, 20)

    assert names(schedule=restarts) == []
    assert names(schedule=lambda optimizer, updates: ExponentialLR(optimizer, 0.9)) == ["rate"]
    assert names(schedule=lambda optimizer, updates: ExponentialLR(optimizer, 0.999)) == []


def test_a_loss_that_no_update_changes() -> None:
    def hard(output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(1) - target).abs().float().mean() + 1.0 + 0.0 * output.sum()

    assert names(loss=hard) == ["loss"]
    (found,) = findings(task(optimizer=functools.partial(torch.optim.SGD, lr=0.0)))
    assert found["name"] == "loss"
    assert "6 updates on one batch: no update changes it" in found["message"]


def test_a_loss_that_is_not_a_number_from_the_start() -> None:
    broken = X.clone()
    broken[::7] = float("nan")
    (found,) = findings(task(train=(broken, Y)))
    assert (found["name"], found["message"]) == ("loss", "The loss is nan on the first batch.")


def test_classes_that_the_output_has_no_place_for() -> None:
    three = Y + (X[:, 0] > 1).long()
    (found,) = findings(task(train=(X, three)))
    assert found["name"] == "targets"
    assert found["message"] == "Targets hold classes 0 to 2 but the model's output has 2 (0 to 1)."
    assert names(train=(X, three), loss=lambda output, target: F.cross_entropy(output, target)) == ["targets"]


def test_parts_for_some_samples_only_are_not_frozen() -> None:
    class Routed(nn.Module):
        """Each sample goes to the expert of its sign: a batch may hold none for one of them."""

        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(6, 2), nn.Linear(6, 2)])
            self.unused = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            chosen = (x[:, :1] > 1.5).float()
            return self.experts[0](x) * (1 - chosen) + self.experts[1](x) * chosen

    (found,) = findings(task(model=Routed))
    assert found["message"].startswith("No gradient reaches unused.weight, unused.bias: training")

    def frozen() -> nn.Module:
        model = Routed()
        model.unused.requires_grad_(False)
        return model

    assert names(model=frozen) == []


def test_layers_that_start_at_zero_are_not_frozen() -> None:
    """At the first update no gradient reaches what is behind a gate of zero; at the second one does."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.gate = nn.Linear(6, 2), nn.Linear(6, 2), nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.one(x) + self.gate * self.two(x)
            return out

    assert names(model=Gated) == []


def test_a_part_in_eval_mode_whose_weights_are_trained() -> None:
    def part(frozen: bool) -> nn.Module:
        model = nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5)), nn.Linear(8, 2))
        model[0].eval().requires_grad_(not frozen)
        return model

    (found,) = findings(task(model=functools.partial(part, False)))
    assert found["name"] == "eval_mode"
    assert "stays in eval mode as given" in found["message"]
    assert names(model=functools.partial(part, True)) == []


RNG = np.random.default_rng(3)


class Drawing(Dataset):
    """Samples with noise from somewhere."""

    def __init__(self, kind: str):
        self.kind, self.state = kind, np.random.RandomState(0)
        self.noise = self.state.randn(200)  # drawn once: nothing is wrong with that

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        drawn = {
            "module": lambda: RNG.normal(),
            "own": lambda: self.state.randn(),
            "by index": lambda: np.random.default_rng(index).normal(),
            "shared": np.random.randn,
            "once": lambda: self.noise[index],
        }[self.kind]()
        return X[index] + float(drawn), int(Y[index])


@pytest.mark.parametrize(("kind", "name"), [("module", "RNG"), ("own", "state")])
def test_a_generator_of_its_own_is_named(kind: str, name: str) -> None:
    (found,) = findings(task(train=Drawing(kind)))
    assert found["name"] == "generator"
    assert f"({name})" in found["message"]


@pytest.mark.parametrize("kind", ["by index", "shared", "once"])
def test_numbers_that_follow_the_sample_are_fine(kind: str) -> None:
    assert names(train=Drawing(kind)) == []


def test_an_augmentation_with_a_generator_of_its_own() -> None:
    own = torch.Generator().manual_seed(0)
    assert names(augment=lambda input, keys: input + torch.randn(6, generator=own)) == ["generator"]
    assert names(augment=lambda input, keys: input + mh.augment.uniform(keys, 6)) == []


def test_parts_of_one_dataset_that_overlap() -> None:
    whole = TensorDataset(X, Y)
    apart = {"train": Subset(whole, range(150)), "test": Subset(whole, range(150, 200))}
    assert names(**apart) == []
    (found,) = findings(task(**{**apart, "test": Subset(whole, range(140, 200))}))
    assert found["message"] == "10 of 60 test samples that were looked at are in the training set as well."
    assert names(train=whole, test=Subset(whole, range(150, 200))) == ["train_test_overlap"]


def test_rows_of_few_values_are_in_both_sets_by_themselves() -> None:
    """Four coins have sixteen outcomes: every test set is in the training set, and nobody has put it there."""
    coins = torch.randint(0, 2, (200, 6), generator=torch.Generator().manual_seed(0)).float()
    assert names(train=(coins, Y), test=(coins[:50].flip(1), Y[:50])) == []
    assert names(test=(X[:50], Y[:50])) == ["train_test_overlap"]
