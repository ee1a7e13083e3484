"""CIFAR-10's recipe and its options."""

import pytest
import torch

from manyhands.data import files
from manyhands.data.augment import sample_keys
from manyhands.errors import BadInput
from manyhands.tasks import load_task


def rate(spec: str, batch_size: int | None = None) -> float:
    task = load_task(spec, batch_size)
    return task.optimizer(torch.nn.Conv2d(2, 2, 3).named_parameters()).param_groups[0]["lr"]


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
    groups = task.optimizer(model.named_parameters()).param_groups
    decayed = {name for group in groups if group["weight_decay"] == 5e-4 for name in group["param_names"]}
    kept = {name for group in groups if group["weight_decay"] == 0.0 for name in group["param_names"]}
    layers = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)}
    assert decayed == layers
    assert decayed | kept == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_wide_head_does_not_drown_the_rest(norm: str):
    """At the full rate group's loss rose above guessing: each update of the head moved all images' logits together."""
    task = load_task(f"cifar10:norm={norm},width=0.25")
    torch.manual_seed(0)
    model = task.model()
    images = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        common = model[:-1](images).mean(0).square().sum().item()
    rates = {
        name: group["lr"]
        for group in task.optimizer(model.named_parameters()).param_groups
        for name in group["param_names"]
    }
    assert rates["20.weight"] * common < 4  # logits all images share, per update and unit of gradient; it was 19 to 25
    assert rates["0.1.0.weight"] == pytest.approx(0.1)


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
