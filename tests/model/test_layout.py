"""Channels last is taken where the estimate says so, changes nothing but rounding, and never makes a model fail."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.model.layout import channels_last_may_pay, channels_last_pays, take_channels_last
from manyhands.strategies.job import Job, StepSettings
from manyhands.training.build import build
from manyhands.training.proof.probe import probe
from tests.conftest import distance, make_task, quick_fit

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available(),
    reason="the costs are of oneDNN on x86",
)


class Views(nn.Module):
    """Reads activations as they lie, which only works with channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32 * 64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.max_pool2d(self.first(x), 2).view(len(x), -1))


def pooled(*inner: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), *inner, nn.MaxPool2d(2), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.LazyLinear(3)
    )


PAYS: dict[str, Callable[[], nn.Module]] = {
    "pooling": lambda: pooled(nn.ReLU()),
    "batchnorm": lambda: pooled(nn.BatchNorm2d(32)),
    "each channel by itself": lambda: pooled(nn.Conv2d(32, 32, 3, groups=32)),
}
STAYS: dict[str, Callable[[], nn.Module]] = {
    "views": Views,
    "no convolution": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 256, 3)),
    "flattened at once": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.LazyLinear(3)),
    "groupnorm": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.LazyLinear(3)),
    "instancenorm": lambda: pooled(nn.InstanceNorm2d(32)),
    "fails": lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), nn.Linear(5, 3)),
    "has chosen": lambda: pooled(nn.Conv2d(32, 32, 3).to(memory_format=torch.channels_last)),  # type: ignore[call-overload]
}
X, Y = torch.randn(2, 3, 16, 16), torch.tensor([0, 2])


def pays(make: Callable[[], nn.Module]) -> bool:
    model = make()
    if any(isinstance(module, nn.LazyLinear) for module in model.modules()):
        model(X)
    return channels_last_may_pay(model) and channels_last_pays(
        model, lambda model: nn.functional.cross_entropy(model(X), Y)
    )


@pytest.mark.parametrize("name", PAYS)
def test_it_is_taken_where_layers_are_faster(name: str) -> None:
    assert pays(PAYS[name])


@pytest.mark.parametrize("name", STAYS)
def test_other_models_stay_as_they_are(name: str) -> None:
    assert not pays(STAYS[name])


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(),
        nn.Flatten(), nn.Linear(16 * 9, 3),
    )  # fmt: skip


def test_a_fit_lays_its_own_model_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = convolutional()
    task = make_task("skips", model=mine)
    last, again = quick_fit(task, max_steps=20), quick_fit(task, max_steps=20)
    assert last.channels_last is True
    assert last.weights_sha256 == again.weights_sha256
    assert [weight.stride() for weight in mine.parameters()] == [w.stride() for w in convolutional().parameters()]
    monkeypatch.setattr("manyhands.training.proof.probe.channels_last_pays", lambda *_: False)
    first = quick_fit(task, max_steps=20)
    assert first.channels_last is False
    assert distance(first, last) <= 1e-6


def test_a_model_without_images_is_not_copied_to_find_that_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPT of 124 million parameters was made anew for it, which took 1.3 s before every fit."""
    made, copies = [], Job.copies
    monkeypatch.setattr(Job, "copies", lambda job: made.append(job) or copies(job))
    for model, tried in ((lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), 1), (convolutional, 2)):
        made.clear()
        probe(build(make_task("skips", model=model), StepSettings()), [torch.device("cpu")], divided=False)
        assert len(made) == tried


def test_on_other_devices_and_compiled_the_model_stays_as_it_is() -> None:
    for settings, device in ((StepSettings(compile=True), "cpu"), (StepSettings(), "cuda")):
        job = build(make_task("skips", model=convolutional), settings)
        probe(job, [torch.device(device)])
        assert not job.channels_last


def test_convolutions_can_lay_images_out_while_weights_lie_row_by_row() -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    images = torch.randn(2, 16, 8, 8)
    usual = model(images)
    take_channels_last(model)
    assert all(weight.is_contiguous() for weight in model.parameters())
    assert model(images).is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(usual, model(images), atol=1e-5)
    assert model(images[0]).shape == usual[0].shape
    assert model[0](input=images).shape == model[0](images).shape


def test_fsdp_cuts_weights_row_by_row_and_has_its_images_laid_out_all_the_same() -> None:
    """fsdp left images with their channels first, where every other strategy had them last and was faster for it."""
    task = make_task("skips", model=convolutional)
    sharded, single = (
        quick_fit(task, strategy, ranks=ranks, max_steps=20) for strategy, ranks in (("fsdp", 2), ("single", 1))
    )
    assert sharded.channels_last is single.channels_last is True
    assert distance(sharded, single) <= 1e-6


LAID_OUT: list[bool] = []


class Looks(nn.Module):
    """Notes how its weights lie in memory when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = pooled(nn.ReLU())
        self.inner(X)  # the last layer is lazy

    def forward(self, x: Tensor) -> Tensor:
        LAID_OUT.append(self.inner[0].weight.is_contiguous(memory_format=torch.channels_last))
        found: Tensor = self.inner(x)
        return found


def test_an_evaluation_without_a_fit_takes_it_too() -> None:
    """Evaluating MobileNetV2 by `mh.evaluate` took 1.5 times as long as in the fit."""
    data = torch.randn(8, 3, 16, 16), torch.zeros(8, dtype=torch.int64)
    task = make_task(model=Looks, train=data, test=data, batch_size=4)
    weights = quick_fit(task, max_steps=1).weights
    assert weights is not None
    del LAID_OUT[:]
    found = mh.evaluate(task, weights)
    assert LAID_OUT[-1]
    assert found["samples"] == 8
