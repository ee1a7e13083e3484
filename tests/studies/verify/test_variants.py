"""Variants of a task: what they change, and what they leave alone."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyhands as mh
from manyhands.studies.verify.calm import calm
from manyhands.studies.verify.forgetful import forgetful
from manyhands.studies.verify.one_by_one import one_by_one
from manyhands.studies.verify.parts import fixed_statistics, full_precision, without_hooks
from manyhands.studies.verify.variants import doubled, nudged, with_model


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


INPUT, LABELS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])
TASK = mh.Task(model=net, train=(INPUT, LABELS), loss=F.cross_entropy, optimizer=partial(torch.optim.SGD, lr=0.1))


def made(task: mh.Task) -> nn.Module:
    return task.model if isinstance(task.model, nn.Module) else task.model()


def test_a_nudge_moves_weights_to_a_neighbouring_number() -> None:
    before, after = net().state_dict(), made(nudged(TASK, 1)).state_dict()
    moved = [float(((after[name] - before[name]) / before[name]).abs().max()) for name in before]
    assert all(0 < distance < 2.4e-7 for distance in moved)


def test_the_callers_model_is_left_alone() -> None:
    own = net()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    assert made(nudged(TASK.replace(model=own), 1)) is not own
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())


def test_in_float64_the_weights_are_the_same_numbers() -> None:
    wide = doubled(TASK)
    model = made(wide)
    assert wide.augment is not None
    assert wide.loss is not None
    input = wide.augment(INPUT, torch.arange(6))
    assert wide.loss(model(input), LABELS).dtype == torch.float64
    assert torch.equal(model[0].weight.float(), net()[0].weight)  # type: ignore[index]


class Random(nn.Module):
    """Draws in every way people do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.layer(x[:, None])[0][:, 0], 0.5)
        h = h * torch.bernoulli(torch.full_like(h, 0.7)) + 0.1 * torch.randn(h.shape) + torch.rand_like(h)
        h = (
            h * torch.empty(len(h), 1).bernoulli_(0.6)
            + torch.empty_like(h).normal_()
            + torch.empty_like(h).uniform_(1, 2)
        )
        if torch.rand(()) > 0.5:
            h = h[torch.randperm(len(h))]
        return self.out(h)


def test_a_calm_model_gives_a_sample_the_same_output_every_time_and_in_any_part() -> None:
    model = made(calm(TASK.replace(model=Random))).train()
    whole = model(INPUT)
    torch.manual_seed(99)
    assert torch.equal(model(INPUT), whole)
    torch.testing.assert_close(torch.cat([model(INPUT[:2]), model(INPUT[2:])]), whole)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls, self.history = nn.Linear(4, 3), 0, list[Tensor]()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x) - self.centre + self.calls + sum(self.history, torch.zeros(()))
        self.calls += 1
        self.history.append(out.detach().mean())
        self.centre += out.detach().mean(0)
        return out


def test_a_forgetful_model_answers_as_it_did_the_first_time() -> None:
    torch.manual_seed(0)
    model = made(forgetful(TASK.replace(model=Remembers)))
    first = model(INPUT)
    first.sum().backward()
    assert torch.equal(model(INPUT), first)
    assert not model.centre.any()


def test_one_by_one_a_sample_has_no_neighbours() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
            return {"out": x - x.mean(0) * 0.5, "loss": x.mean()}

    model = Centred()
    one_by_one(model)
    found = model(INPUT, scale=torch.ones(6))
    torch.testing.assert_close(found["out"], INPUT * 0.5)
    torch.testing.assert_close(found["loss"], INPUT.mean())


def test_fixed_statistics_stay_fixed_in_training() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    fixed_statistics(model)
    model.train()
    assert not model[1].training
    assert model[2].training
    assert isinstance(model[1], nn.BatchNorm1d)


def test_full_precision_undoes_autocast_and_casts() -> None:
    class Coarse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.layer(x.to(torch.bfloat16)).bfloat16()

    model = Coarse()
    coarse = model(INPUT)
    full_precision(model)
    assert coarse.dtype == torch.bfloat16
    assert torch.equal(model(INPUT), model.layer(INPUT))


def test_hooks_on_gradients_are_gone() -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.layer.weight.register_hook(lambda gradient: gradient * 0)

        def forward(self, x: Tensor) -> Tensor:
            out = self.layer(x)
            out.register_hook(lambda gradient: gradient * 0)
            return out

    model = made(with_model(TASK.replace(model=Hooked), without_hooks))
    model(INPUT).sum().backward()
    assert model.layer.weight.grad.any()  # type: ignore[union-attr]
