"""Captured steps on a GPU: the same training, and a plain word where a step cannot be recorded."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.data import augment
from manyhands.schedules import cosine
from manyhands.world.launch.rank_in_waiting import begin
from tests.conftest import make_task, quick_fit

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def images(samples: int = 1003) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 256, (samples, 1, 12, 12), dtype=torch.uint8, generator=generator)
    return x, (x.float().flatten(1)[:, :3]).argmax(1)


class Small(nn.Module):
    """A little CNN with BatchNorm over uint8 or float images.

    Smooth throughout: behind ReLU and MaxPool2d the last bit of a sum, which atomic additions leave open, grew to a
    hundredth of a weight within 200 steps.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.GELU(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(8 * 36, 3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.float() / 255 if x.dtype == torch.uint8 else x)


def task_of(**changes: Any) -> mh.Task:
    data = images()
    fields: dict[str, Any] = {
        "model": Small,
        "train": data,
        "test": data,
        "loss": nn.functional.cross_entropy,
        "optimizer": functools.partial(torch.optim.SGD, lr=0.02, momentum=0.9),
        "batch_size": 30,
        "epochs": 6,
        "schedule": cosine(warmup=0.1),
        "augment": augment.Affine(degrees=10, translate=0.1),
        "name": "images",
    }
    return mh.Task(**{**fields, **changes})


def neighbours(x: Tensor, keys: Tensor) -> Tensor:
    """Blends each image with the one before it in the batch, so batches cannot be augmented together."""
    values = x.float() / 255
    return 0.8 * values + 0.2 * values.roll(1, 0)


def fit(task: mh.Task, **keywords: Any) -> mh.Run:
    return quick_fit(task, **{"device": "cuda", **keywords})


@pytest.fixture(autouse=True)
def whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """With TF32, which kernels were faster this time would show in the fourth digit."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def far(one: mh.Run, other: mh.Run) -> float:
    """The largest difference relative to the largest weight of the same tensor."""
    assert one.weights
    assert other.weights
    return max(
        float((one.weights[name].double() - value.double()).abs().max() / (value.double().abs().max() + 1e-12))
        for name, value in other.weights.items()
    )


@pytest.mark.parametrize(
    ("changes", "keywords"),
    [
        ({}, {}),
        ({}, {"accumulate": 3}),
        ({}, {"clip": 0.5}),
        ({"optimizer": functools.partial(torch.optim.AdamW, lr=0.002)}, {}),
        ({"model": functools.partial(Small, dropout=0.3)}, {}),
        ({"augment": neighbours}, {}),
        ({"augment": None}, {}),
    ],
    ids=["plain", "accumulate", "clip", "adamw", "dropout", "mixing within a batch", "no augmentation"],
)
def test_captured_and_eager_training_agree(changes: dict[str, Any], keywords: dict[str, Any]) -> None:
    task = task_of(**changes)
    eager = fit(task, max_steps=200, capture="off", **keywords)
    captured = fit(task, max_steps=200, **keywords)
    assert captured.capture is not None
    assert captured.capture["reason"] is None, captured.capture
    assert captured.capture["steps"] > 150
    assert captured.steps == eager.steps == 200
    assert captured.updates == eager.updates
    assert captured.samples == eager.samples
    assert captured.losses == pytest.approx(eager.losses, rel=2e-3, abs=2e-4)
    assert far(captured, eager) < 1e-4
    assert captured.phases_ms is not None
    assert captured.seconds is not None
    assert sum(captured.phases_ms.values()) * captured.steps == pytest.approx(captured.seconds * 1e3, rel=0.02)
    assert "eager" in str(captured.phases_source)
    assert len(captured.losses) == 200
    assert None not in captured.losses


def test_resume_in_the_middle_under_capture(tmp_path: Path) -> None:
    task = task_of()
    whole = fit(task, max_steps=150)
    fit(task, max_steps=77, run_dir=tmp_path / "run", checkpoint_every=20)
    resumed = fit(task, max_steps=150, run_dir=tmp_path / "run", resume=True, checkpoint_every=20)
    assert resumed.resumed_from is not None
    assert resumed.capture is not None
    assert resumed.capture["reason"] is None
    assert far(resumed, whole) < 1e-4
    assert resumed.losses == pytest.approx(whole.losses, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_average_of_the_weights_is_kept_in_captured_steps(accumulate: int, tmp_path: Path) -> None:
    """The update that begins it is an ordinary one; what trying and recording left in it is gone."""
    task, steps = task_of(ema=0.9), {"max_steps": 60, "accumulate": accumulate}
    eager, captured, plain = fit(task, capture="off", **steps), fit(task, **steps), fit(task.replace(ema=None), **steps)
    assert captured.capture is not None
    assert captured.capture["steps"] > 40
    assert captured.ema_weights is not None
    assert eager.ema_weights is not None
    for name, value in eager.ema_weights.items():
        assert torch.allclose(captured.ema_weights[name], value, rtol=1e-4, atol=1e-5)
    assert far(captured, plain) < 1e-4
    fit(task, **{**steps, "max_steps": 33}, run_dir=tmp_path, checkpoint_every=9)
    resumed = fit(task, **steps, run_dir=tmp_path, checkpoint_every=9, resume=True)
    assert resumed.ema_weights is not None
    for name, value in captured.ema_weights.items():
        assert torch.allclose(resumed.ema_weights[name], value, rtol=1e-4, atol=1e-5)


class Peeks(Small):
    """Looks at a value on the host in the middle of its forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out * 2 if out.sum().item() > 1e9 else out


class DrawsOnTheHost(Small):
    def forward(self, x: Tensor) -> Tensor:
        import random

        return super().forward(x) * (1.0 + 0.0 * random.random())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": Peeks}, "waits for the device"),
        ({"model": DrawsOnTheHost}, "random numbers on the host"),
        ({"optimizer": functools.partial(torch.optim.RMSprop, lr=0.001)}, "RMSprop"),
    ],
)
def test_what_cannot_be_captured_trains_and_says_why(changes: dict[str, Any], reason: str) -> None:
    run = fit(task_of(augment=None, **changes), max_steps=60)
    assert run.status == "done"
    assert run.capture is not None
    assert reason in run.capture["reason"]
    assert run.capture["steps"] == 0
    assert sum(reason in note for note in run.notes) == 1
    assert sum(run.losses[-20:]) < sum(run.losses[:20])


def test_looking_at_every_step_is_a_reason() -> None:
    seen: list[int] = []
    run = fit(task_of(), max_steps=20, on_step=lambda figures: seen.append(figures.step) and None)
    assert seen == list(range(1, 21))
    assert run.capture is not None
    assert "on_step" in run.capture["reason"]


def test_capture_off_says_nothing() -> None:
    run = fit(task_of(), max_steps=20, capture="off")
    assert run.capture is None


def test_bf16_keeps_images_in_the_layout_of_tensor_cores_and_weights_in_the_users() -> None:
    run = fit(task_of(), max_steps=100, precision="bf16")
    assert run.capture is not None
    assert run.capture["reason"] is None
    assert run.weights is not None
    assert all(value.is_contiguous() for value in run.weights.values())
    assert sum(run.losses[-30:]) < sum(run.losses[:30])


def test_a_dataset_reaches_the_gpu_through_locked_memory() -> None:
    x, y = images()
    data = torch.utils.data.TensorDataset(x, y)
    listed = [data[number] for number in range(len(data))]
    as_dataset = fit(task_of(train=listed), max_steps=60, capture="off")
    in_memory = fit(task_of(), max_steps=60, capture="off")
    assert far(as_dataset, in_memory) < 1e-4
    captured = fit(task_of(train=listed), max_steps=20)
    assert captured.capture is not None
    assert "not on the GPU" in captured.capture["reason"]


def test_a_loss_that_is_not_finite_names_its_step() -> None:
    with pytest.raises(mh.RankFailed, match=r"the loss of step \d+ is (nan|inf)"):
        fit(make_task(optimizer=functools.partial(torch.optim.SGD, lr=1e30)), max_steps=90)


def test_phases_are_the_devices_time() -> None:
    """A kernel that idles in forward shows in forward, though the host has long gone on."""

    class Sleeps(Small):
        def forward(self, x: Tensor) -> Tensor:
            torch.cuda._sleep(4_000_000)  # some 2 ms
            return super().forward(x)

    run = fit(task_of(model=Sleeps), max_steps=60, capture="off")
    assert run.phases_ms is not None
    assert max(run.phases_ms, key=run.phases_ms.__getitem__) == "forward"
    assert run.seconds is not None
    assert sum(run.phases_ms.values()) * run.steps == pytest.approx(run.seconds * 1e3, rel=0.02)


def test_peak_memory_is_the_gpus() -> None:
    run = fit(make_task(), max_steps=20)
    assert 0 < run.per_rank[0]["peak_memory_bytes"] < 2**30


def test_a_gpu_can_be_begun_before_it_is_needed() -> None:
    """The first step on a GPU waits half a second for libraries and kernels; a rank in waiting does so while data is read."""
    generator = torch.cuda.default_generators[0]
    before, drawn = torch.random.get_rng_state(), generator.get_offset()
    kept = torch.cuda.memory_allocated()
    begin("auto")
    begin("cuda:0")
    begin("cpu")
    assert torch.equal(before, torch.random.get_rng_state())
    assert generator.get_offset() == drawn
    assert torch.cuda.memory_allocated() - kept <= 64 << 20  # what cuBLAS keeps for itself
