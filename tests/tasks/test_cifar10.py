"""CIFAR-10's recipe and its options."""

import pytest
import torch

from manyhands.data import files
from manyhands.data.augment import sample_keys
from manyhands.errors import BadInput
from manyhands.tasks import load_task


def rate(spec: str, batch_size: int | None = None) -> float:
    task = load_task(spec, batch_size)
    return task.optimizer(torch.nn.Linear(2, 2).named_parameters()).param_groups[0]["lr"]


def test_the_rate_follows_the_batch_however_it_is_given():
    assert rate("cifar10") == pytest.approx(0.1)
    assert rate("cifar10:batch=512") == pytest.approx(0.4)
    assert rate("cifar10", batch_size=512) == pytest.approx(0.4)
    assert rate("cifar10:rate=0.05", batch_size=2048) == pytest.approx(0.8)
    assert load_task("cifar10", batch_size=512).batch_size == 512
    assert load_task("glyphs", batch_size=50).batch_size == 50  # a task without the option `batch` just takes it


def test_weights_of_layers_decay_and_nothing_else():
    task = load_task("cifar10:width=0.25")
    model = task.model()
    decayed, kept = task.optimizer(model.named_parameters()).param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (5e-4, 0.0)
    layers = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)}
    assert set(decayed["param_names"]) == layers
    assert set(decayed["param_names"]) | set(kept["param_names"]) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("norm", ["batch", "group", "none", "ghost"])
@pytest.mark.parametrize("model", ["mobilenetv2", "resnet20"])
def test_a_step_with_every_option(model: str, norm: str, monkeypatch: pytest.MonkeyPatch):
    split = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8), torch.arange(8)
    monkeypatch.setattr(files, "cifar10", lambda: (split, split))
    task = load_task(f"cifar10:model={model},norm={norm},width=0.5,schedule=linear")
    images, labels = task.train()
    moved = task.augment(images, sample_keys(0, 0, torch.arange(8)))
    torch.manual_seed(0)
    net = task.model()
    optimizer = task.optimizer(net.named_parameters())
    schedule = task.schedule(optimizer, 10)
    task.loss(net(moved), labels).backward()
    optimizer.step()
    schedule.step()
    assert moved.dtype == torch.uint8  # crop, flip and cutout only move bytes
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("norm=layer", 'option norm needs one of batch, group, none, ghost (found "layer")'),
        ("model=vgg", 'option model needs one of mobilenetv2, resnet20, resnet50 (found "vgg")'),
        ("width=wide", 'option width needs a number (found "wide")'),
        ("width=0", "option width must be above 0 (found 0.0)"),
        ("batch=-8", "option batch must be above 0 (found -8)"),
        ("schedule=step", "option schedule needs one of cosine, linear"),
        ("widht=2", 'task cifar10 has no option "widht"; did you mean "width"?'),
    ],
)
def test_bad_options(options: str, message: str):
    with pytest.raises(BadInput) as caught:
        load_task(f"cifar10:{options}")
    assert message in str(caught.value)
