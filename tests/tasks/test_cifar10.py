"""CIFAR-10's recipe and its options."""

from pathlib import Path

import pytest
import torch

from manyhands.data import files
from manyhands.data.augment import sample_keys
from manyhands.errors import BadInput
from manyhands.tasks import cifar10, load_task


def rate(spec: str, batch_size: int | None = None) -> float:
    task = load_task(spec, batch_size)
    return task.optimizer(torch.nn.Conv2d(2, 2, 3).named_parameters()).param_groups[0]["lr"]


def test_the_rate_follows_the_batch_however_it_is_given():
    assert rate("cifar10") == pytest.approx(0.1)
    assert rate("cifar10:batch=512") == pytest.approx(0.4)
    assert rate("cifar10", batch_size=512) == pytest.approx(0.4)
    assert rate("cifar10:rate=0.05", batch_size=2048) == pytest.approx(0.8)
    assert rate("cifar10:recipe=published", batch_size=512) == pytest.approx(0.2)  # as published
    assert rate("cifar10:recipe=published", batch_size=2048) == pytest.approx(0.8)
    assert rate("cifar10:norm=none", batch_size=512) == pytest.approx(2e-3)  # AdamW: the square root of the batch
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


def test_the_published_recipe_in_full():
    task = load_task("cifar10:recipe=published")
    chosen = task.optimizer(torch.nn.Linear(2, 2).named_parameters())
    assert type(chosen) is torch.optim.SGD
    [group] = chosen.param_groups  # weight decay on everything
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, False, 1e-4)
    assert task.loss is torch.nn.functional.cross_entropy
    assert repr(task.augment).count("(") == 3  # Compose(Crop, Flip)
    assert "Cutout" in repr(load_task("cifar10").augment)


@pytest.mark.parametrize("norm", ["group", "none"])
def test_without_batch_statistics_gains_start_from_the_training_images(norm: str, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    split = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8), torch.arange(64) % 10
    monkeypatch.setattr(files, "cifar10_split", lambda name: split)
    task = load_task(f"cifar10:norm={norm},width=0.25,small")
    assert task.train()[0].shape == (64, 3, 16, 16)
    model = task.model()
    before = model[:18](task.train()[0])
    assert before.mean((0, 2, 3)).abs().max() < 0.1
    assert 0.8 < before.std() < 1.4
    assert type(task.optimizer(model.named_parameters())) is torch.optim.AdamW


def test_a_wide_head_does_not_drown_the_rest():
    """At the full rate the loss rose above guessing: each update of the head moved all images' logits together."""
    task = load_task("cifar10:width=0.25")
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


@pytest.mark.parametrize("norm", ["batch", "group", "none", "ghost", "removed"])
@pytest.mark.parametrize("model", ["mobilenetv2", "resnet20"])
def test_a_step_with_every_option(model: str, norm: str, monkeypatch: pytest.MonkeyPatch):
    split = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8), torch.arange(8)
    monkeypatch.setattr(files, "cifar10_split", lambda name: split)
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
        ("norm=layer", 'option norm needs one of batch, group, none, ghost, removed (found "layer")'),
        ("model=vgg", 'option model needs one of mobilenetv2, resnet20, resnet50 (found "vgg")'),
        ("width=wide", 'option width needs a number (found "wide")'),
        ("width=0", "option width must be above 0 (found 0.0)"),
        ("rate=fast", 'option rate needs a number (found "fast")'),
        ("rate=0", "option rate must be above 0 (found 0.0)"),
        ("recipe=best", 'option recipe needs one of ours, published (found "best")'),
        ("batch=-8", "option batch must be above 0 (found -8)"),
        ("schedule=step", "option schedule needs one of cosine, linear"),
        ("widht=2", 'task cifar10 has no option "widht"; did you mean "width"?'),
    ],
)
def test_bad_options(options: str, message: str):
    with pytest.raises(BadInput) as caught:
        load_task(f"cifar10:{options}")
    assert message in str(caught.value)


def test_the_test_images_are_not_read_for_the_training_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command on MNIST and CIFAR-10 read all of their files twice."""
    read: list[str] = []
    monkeypatch.setattr(files, "_cifar10_folder", lambda: Path("cifar"))
    batch = torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    monkeypatch.setattr(files, "_cifar10_batch", lambda path: read.append(path.stem) or batch)
    assert [len(cifar10.images(split)[0]) for split in ("train", "test")] == [10, 2]
    assert read == [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
