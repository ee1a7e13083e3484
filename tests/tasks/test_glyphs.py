"""The drawn digits: the same everywhere, cached safely, and as hard as they say."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from manyhands.tasks import glyphs, load_task

DIGEST = "9e883346bc895d72145ef0c49e9f331f5d694617c46ae65385dc40da59150d49"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "manyhands"


def test_shapes_types_and_classes():
    pixels, labels = glyphs.images("train", 700)
    assert pixels.shape == (700, 1, 28, 28)
    assert pixels.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert torch.bincount(labels, minlength=10).min() > 30
    assert 0.13 < pixels.float().mean() / 255 < 0.22


def test_the_same_bytes_on_every_machine():
    pixels, labels = glyphs.draw("train", 64)
    assert hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest() == DIGEST


def test_a_short_set_is_the_start_of_a_long_one_and_splits_differ():
    long, _ = glyphs.draw("train", 620)
    short, _ = glyphs.draw("train", 510)
    other, _ = glyphs.draw("test", 510)
    assert np.array_equal(long[:510], short)
    assert not np.array_equal(other, short)


def test_no_image_comes_twice():
    pixels, _ = glyphs.draw("train", 2000)
    assert len(np.unique(pixels.reshape(2000, -1), axis=0)) == 2000


def test_the_cache_is_used_and_leaves_nothing_but_the_file(cache: Path, monkeypatch: pytest.MonkeyPatch):
    first = glyphs.images("test", 40)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(glyphs, "draw", None)  # drawing again would raise
    again = glyphs.images("test", 40)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half a file", b"no archive at all"])
def test_a_damaged_cache_file_is_replaced(cache: Path, damage: bytes):
    first, _ = glyphs.images("test", 40)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage or whole[: len(whole) // 2])
    again, _ = glyphs.images("test", 40)
    assert torch.equal(first, again)
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path):
    cache.write_text("a file where the folder should be")
    pixels, _ = glyphs.images("test", 40)
    assert len(pixels) == 40


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_folder_is_no_error(cache: Path):
    cache.mkdir(mode=0o500)
    assert len(glyphs.images("test", 40)[0]) == 40


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, task, steps: int) -> float:
    pixels, labels = task.train()
    schedule = task.schedule(optimizer, steps)
    order = torch.randperm(steps * 32, generator=torch.Generator().manual_seed(0)) % len(pixels)
    for batch in order.split(32):
        optimizer.zero_grad()
        task.loss(model(pixels[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    pixels, labels = task.test()
    with torch.no_grad():
        return float((model(pixels).argmax(1) == labels).float().mean())


@pytest.mark.soak
def test_lenet_learns_what_a_linear_model_cannot():
    task = load_task("glyphs:train=6000,test=1000")
    torch.manual_seed(0)
    lenet = task.model()
    straight = torch.nn.Sequential(lenet[0], torch.nn.Flatten(), torch.nn.Linear(784, 10))
    curved = train(lenet, task.optimizer(lenet.named_parameters()), task, 250)
    linear = train(straight, torch.optim.SGD(straight.parameters(), lr=0.002, momentum=0.9), task, 250)
    assert curved > 0.88
    assert 0.6 < linear < 0.85
