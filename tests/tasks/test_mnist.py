"""MNIST's two ways of loading: whole batches, and sample by sample as published."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from manyhands.data import files
from manyhands.data.augment import sample_keys
from manyhands.tasks import glyphs, load_task, mnist


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = torch.Generator().manual_seed(0)
    split = torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8, generator=chance), torch.arange(40) % 10
    monkeypatch.setattr(files, "mnist_split", lambda name: split if name == "train" else (split[0][:8], split[1][:8]))


@pytest.mark.usefixtures("few")
def test_images_come_whole_and_are_augmented_in_the_step():
    task = load_task("mnist")
    images, labels = task.train()
    assert len(images) == 40
    assert len(task.test()[0]) == 8
    moved = task.augment(images, sample_keys(0, 0, torch.arange(40)))
    assert moved.shape == images.shape
    assert task.model()(moved).shape == (40, 10)
    assert labels.dtype == torch.int64


@pytest.mark.usefixtures("few")
def test_the_slow_way_moves_each_sample_when_asked():
    task = load_task("mnist:slow")
    assert task.augment is None
    data = task.train()
    image, label = data[3]
    assert len(data) == 40
    assert image.shape == (1, 28, 28)
    assert image.dtype == torch.float32
    bytes_again = (image * mnist.STD + mnist.MEAN) * 255  # it is normalised by the loader, not by the model
    assert torch.allclose(bytes_again, bytes_again.round().clamp(0, 255), atol=1e-3)
    assert label == 3
    assert not torch.equal(image, data[3][0])


@pytest.mark.usefixtures("few")
def test_the_slow_way_tests_on_the_same_numbers_as_the_fast_one():
    fast, slow = load_task("mnist"), load_task("mnist:slow")
    (images, labels), (normalised, same_labels) = fast.test(), slow.test()
    torch.testing.assert_close(slow.model()[0](normalised), fast.model()[0](images))
    assert torch.equal(labels, same_labels)


@pytest.mark.usefixtures("few")
def test_without_the_affine_images_stay_where_they_are_in_both_ways_of_loading():
    fast, slow = load_task("mnist:affine=no"), load_task("mnist:slow,affine=no")
    assert fast.augment is None
    images, _ = fast.train()
    data = slow.train()
    assert torch.equal(data[3][0], data[3][0])
    torch.testing.assert_close(slow.model()[0](data[3][0][None]), fast.model()[0](images[3:4]))


def test_drawn_images_take_the_place_of_the_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "mnist_split", lambda name: pytest.fail("the files were read"))
    few = torch.zeros(6, 1, 28, 28, dtype=torch.uint8), torch.arange(6)
    monkeypatch.setattr(glyphs, "images", lambda split, count: few)
    assert load_task("mnist:drawn").train() is few
    assert len(load_task("mnist:slow,drawn").train()) == 6
    assert load_task("mnist:slow,drawn").test()[0].dtype == torch.float32


def test_a_picture_becomes_a_tensor_channels_first():
    picture = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    tensor = mnist.to_tensor(picture)
    assert tensor.shape == (4, 2, 3)
    assert tensor[3, 1, 2] == pytest.approx(picture[1, 2, 3] / 255)


def test_the_inverse_map_undoes_turn_scale_lean_and_shift(monkeypatch: pytest.MonkeyPatch):
    chosen = iter((0.9, 0.1, 0.85, 0.25, 0.7))  # angle, shifts, scale, lean: how far from low to high
    monkeypatch.setattr(mnist, "between", lambda low, high: low + (high - low) * next(chosen))
    a, b, c, d, e, f = mnist.random_inverse(28, 28)
    turn, lean = math.radians(8), math.tan(math.radians(2))
    scale, right, down = 0.95, 0.07 * 28 * -0.8, 0.07 * 28 * 0.7
    for x, y in ((3.0, 5.0), (20.0, 11.0)):
        over, under = x - 13.5, y - 13.5  # lean, scale and turn about the centre, then shift
        over += lean * under
        to_x = scale * (math.cos(turn) * over - math.sin(turn) * under) + 13.5 + right
        to_y = scale * (math.sin(turn) * over + math.cos(turn) * under) + 13.5 + down
        assert (a * to_x + b * to_y + c, d * to_x + e * to_y + f) == pytest.approx((x, y))


def test_pil_and_torch_move_alike():
    pytest.importorskip("PIL")
    image = torch.zeros(28, 28, dtype=torch.uint8)
    image[6:20, 9:17] = 200
    for seed in range(5):
        torch.manual_seed(seed)
        matrix = mnist.random_inverse(28, 28)
        difference = mnist.move(image, matrix).astype(int) - mnist.move_with_torch(image, matrix).astype(int)
        assert abs(difference).max() <= 2
    still = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert np.array_equal(mnist.move(image, still), image)
    assert np.array_equal(mnist.move_with_torch(image, still), image)
    assert np.array_equal(mnist.move(image, None), image)


def test_the_real_files(real_data: Path):
    if not (real_data / "mnist").is_dir():
        pytest.skip("no MNIST there")
    task = load_task("mnist")
    images, labels = task.train()
    assert images.shape == (60_000, 1, 28, 28)
    assert torch.bincount(labels).tolist()[:3] == [5923, 6742, 5958]
    assert len(task.test()[0]) == 10_000
