"""fit(): the record, the callbacks, what it leaves alone, and what ends it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.record.run import PHASES, weights_digest
from tests.conftest import BATCH, SAMPLES, distance, fork_servers, make_task, quick_fit

STEPS = -(-SAMPLES // BATCH)


def test_the_record_holds_what_the_design_promises() -> None:
    run = quick_fit(make_task(), "ddp", ranks=2, epochs=2)
    record = json.loads(run.to_json())
    assert record["status"] == "done"
    assert (record["strategy"], record["ranks"], record["exact"], record["device"]) == ("ddp", 2, True, "cpu")
    assert record["steps"] == record["updates"] == 2 * STEPS == len(record["losses"])
    assert record["samples"] == 2 * SAMPLES
    assert set(record["phases_ms"]) == set(PHASES)
    assert record["seconds"] == pytest.approx(record["steps"] * sum(record["phases_ms"].values()) / 1000, rel=1e-6)
    assert record["samples_per_second"] == pytest.approx(record["samples"] / record["seconds"])
    assert record["step_ms"]["p10"] <= record["step_ms"]["median"] <= record["step_ms"]["p90"]
    parts = dict(record["timings"])
    assert parts.pop("total") == pytest.approx(sum(parts.values()), rel=1e-6)
    assert parts["training"] == record["seconds"]
    assert min(parts["data"], parts["checks"], parts["ranks"]) > 0
    assert [entry["epoch"] for entry in record["epochs"]] == [1, 2]
    assert all(entry["samples"] == SAMPLES and entry["learning_rate"] == 0.1 for entry in record["epochs"])
    assert record["epochs"][-1]["test_accuracy"] == record["test"]["accuracy"]
    assert record["test"]["samples"] == SAMPLES
    assert set(record["test"]["per_class"]) == {"0", "1", "2"}
    assert [row["rank"] for row in record["per_rank"]] == [0, 1]
    assert sum(row["samples"] for row in record["per_rank"]) == 2 * SAMPLES
    assert all(row["peak_memory_bytes"] > 1e7 and row["host"] for row in record["per_rank"])
    weights_bytes = sum(value.numel() * 4 for value in run.weights.values())  # type: ignore[union-attr]
    assert record["communication_bytes"] == 2 * weights_bytes  # the formula of the docstring: n * P
    assert record["weights_sha256"] == weights_digest(run.weights)  # type: ignore[arg-type]
    assert record["environment"]["torch"] == torch.__version__
    assert record["staleness"] is None
    assert record["resumed_from"] is None


@pytest.mark.parametrize(
    ("ranks", "accumulate"),
    [(3, 3), *(pytest.param(*row, marks=pytest.mark.soak) for row in [(2, 1), (2, 3), (3, 1)])],
)  # one step per update: strategies/test_contract.py
def test_ddp_trains_the_model_of_single(ranks: int, accumulate: int) -> None:
    task = make_task()
    one = quick_fit(task, max_steps=50, accumulate=accumulate)
    many = quick_fit(task, "ddp", ranks=ranks, max_steps=50, accumulate=accumulate)
    assert distance(one, many) <= 1e-6
    assert one.updates == many.updates == {1: 50, 3: 17}[accumulate]
    assert many.losses == pytest.approx(one.losses, abs=1e-5)


def test_accumulation_equals_the_larger_batch() -> None:
    small = quick_fit(make_task(batch_size=10), epochs=1, accumulate=3)
    large = quick_fit(make_task(batch_size=30), epochs=1)
    assert small.updates == large.updates
    assert distance(small, large) <= 1e-6


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_clipping_bf16_and_schedules_under(strategy: str) -> None:
    task = make_task(schedule=mh.schedules.cosine(warmup=0.1))
    reference = quick_fit(task, max_steps=20, clip=0.05)
    run = quick_fit(task, strategy, max_steps=20, clip=0.05)
    assert distance(reference, run) <= 1e-6
    assert distance(reference, quick_fit(task, strategy, max_steps=20)) > 1e-3  # clipping does something
    assert run.epochs[-1]["learning_rate"] < 0.1
    assert quick_fit(task, strategy, max_steps=20, precision="bf16").losses[-1] < 1.2  # type: ignore[operator]


def test_max_steps_crosses_epochs_only_as_far_as_epochs_allow() -> None:
    assert quick_fit(make_task(), max_steps=STEPS + 3, epochs=2).steps == STEPS + 3
    assert quick_fit(make_task(), max_steps=1000, epochs=1).steps == STEPS
    assert quick_fit(make_task(), max_steps=5).test is not None


def test_the_last_batch_with_fewer_samples_than_ranks() -> None:
    task = make_task(train=lambda: (torch.randn(31, 20), torch.randint(3, (31,))), test=None)
    assert distance(quick_fit(task), quick_fit(task, "ddp", ranks=3)) <= 1e-6


def test_batchnorm_over_all_ranks() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    task = make_task(model=model)
    reference = quick_fit(task, max_steps=30)
    plain = quick_fit(task, "ddp", ranks=2, max_steps=30)
    assert plain.exact is False
    assert "BatchNorm" in str(plain.exact_reason)
    synced = quick_fit(task, "ddp", ranks=2, max_steps=30, sync_batchnorm=True)
    assert synced.exact is True
    assert distance(reference, synced) <= 1e-5 < distance(reference, plain)


def test_frozen_unused_and_sparse_parameters() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 8, sparse=True)
            self.frozen = nn.Linear(8, 8).requires_grad_(False)
            self.unused = nn.Linear(8, 8)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.frozen(self.embed(x).mean(1)))

    x = torch.randint(50, (SAMPLES, 6))
    task = make_task(model=Odd, train=(x, x[:, 0] % 3), test=None)
    one, two = quick_fit(task, max_steps=20), quick_fit(task, "ddp", ranks=2, max_steps=20)
    assert distance(one, two) <= 1e-5
    fresh = Odd()
    assert one.weights is not None
    assert one.weights["unused.weight"].shape == fresh.unused.weight.shape


def test_a_general_dataset_with_loader_workers() -> None:
    x, y = make_task().train  # type: ignore[misc]

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return x[index], int(y[index])

    reference = quick_fit(make_task(), max_steps=10)
    for workers in (0, 2):
        run = quick_fit(make_task(train=Rows()), "ddp", ranks=2, max_steps=10, loader_workers=workers)
        assert distance(reference, run) <= 1e-6


def test_augmentation_does_not_depend_on_the_number_of_ranks() -> None:
    def shift(x: Tensor, keys: Tensor) -> Tensor:
        return x + 0.1 * mh.augment.uniform(keys, 20)

    task = make_task(augment=shift)
    one = quick_fit(task, max_steps=40)
    assert distance(one, quick_fit(task, "ddp", ranks=3, max_steps=40)) <= 1e-6
    assert distance(one, quick_fit(make_task(), max_steps=40)) > 1e-4


def test_a_loss_that_is_not_finite_names_step_and_rank(nothing_left: None) -> None:
    x, y = make_task().train  # type: ignore[misc]
    x = x.clone()
    x[::7] = float("nan")
    with pytest.raises(mh.RankFailed, match=r"rank \d of 2: the loss of step 1 is nan, not a finite number"):
        quick_fit(make_task(train=(x, y)), "ddp", ranks=2)


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_callbacks_see_figures_and_end_the_run(strategy: str) -> None:
    seen: list[Any] = []

    def look(figures: Any) -> bool:
        seen.append(figures)
        return bool(figures["step"] == 7)

    run = quick_fit(make_task(), strategy, on_step=look)
    assert [figures.step for figures in seen] == list(range(1, 8))
    assert [figures.loss for figures in seen] == pytest.approx(run.losses)
    assert seen[-1].samples == 7 * BATCH
    assert seen[-1].learning_rate == 0.1
    assert (run.status, run.steps) == ("stopped", 7)
    assert "on_step ended the run after step 7" in str(run.reason)
    assert run.weights is not None

    epochs: list[Any] = []
    run = quick_fit(make_task(), strategy, on_epoch=lambda figures: epochs.append(figures) or figures.epoch == 2)
    assert [figures.epoch for figures in epochs] == [1, 2]
    assert epochs[0]["test_accuracy"] > 0.4
    assert run.steps == 2 * STEPS


def test_a_callback_that_fails_ends_the_run_on_the_record(tmp_path: Path, nothing_left: None) -> None:
    """The folder kept the record of the run before, done and with its weights, beside the checkpoints of this one."""
    quick_fit(make_task(), "single", max_steps=2, run_dir=tmp_path)

    def fail(figures: Any) -> None:
        if figures.step == 5:
            raise LookupError("no such chart")

    with pytest.raises(LookupError, match="no such chart"):
        quick_fit(make_task(), "ddp", ranks=2, run_dir=tmp_path, on_step=fail)
    run = mh.Run.load(tmp_path)
    assert (run.strategy, run.status, run.reason) == ("ddp", "failed", "LookupError: no such chart")
    assert run.weights_sha256 is None


def test_the_caller_is_left_as_it_was(two_threads: None) -> None:
    quick_fit(make_task(), max_steps=1)  # a first fit imports parts of torch that write into the environment
    model = nn.Linear(20, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    folder, environment = Path.cwd(), dict(os.environ)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    expected = torch.Generator().manual_seed(5)
    quick_fit(make_task(model=model), "ddp", ranks=2, max_steps=5)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=expected))
    assert np.random.rand() == np.random.RandomState(5).rand()
    assert random.random() == random.Random(5).random()
    assert torch.get_num_threads() == 2
    assert Path.cwd() == folder
    assert dict(os.environ) == environment
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == handlers
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_works_off_the_main_thread() -> None:
    runs: list[mh.Run] = []
    thread = threading.Thread(target=lambda: runs.append(quick_fit(make_task(), "ddp", ranks=2, max_steps=3)))
    thread.start()
    thread.join(60)
    assert runs[0].steps == 3


def test_lambdas_closures_and_local_classes_travel() -> None:
    width = 11

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    task = make_task(model=lambda: Local(), optimizer=lambda named: torch.optim.Adam(named, lr=0.01))
    run = quick_fit(task, "ddp", ranks=2, max_steps=5)
    assert run.weights is not None
    assert run.weights["net.0.weight"].shape == (width, 20)


def test_same_seed_same_bits_and_another_seed_other_bits() -> None:
    runs = [quick_fit(make_task(seed=seed), "ddp", ranks=2, max_steps=10) for seed in (0, 0, 1)]
    assert runs[0].weights_sha256 == runs[1].weights_sha256 != runs[2].weights_sha256


def test_run_folder_and_evaluate(tmp_path: Path) -> None:
    task = make_task()
    run = quick_fit(task, "ddp", ranks=2, epochs=1, run_dir=tmp_path / "kept")
    assert {entry.name for entry in (tmp_path / "kept").iterdir()} >= {"run.json", "weights.safetensors"}
    stored = mh.Run.load(tmp_path / "kept")
    assert stored.record() == run.record()
    assert stored.weights is not None
    assert mh.evaluate(task, stored.weights) == run.test


def test_python_writes_nothing_without_a_run_dir(tmp_path: Path) -> None:
    quick_fit(make_task(), max_steps=2)
    assert list(tmp_path.iterdir()) == []


def test_dropout_draws_the_same_numbers_again() -> None:
    task = make_task(model=lambda: nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.5), nn.Linear(30, 3)))
    runs = [quick_fit(task, "ddp", ranks=2, max_steps=10) for _ in range(2)]
    assert runs[0].weights_sha256 == runs[1].weights_sha256
    assert runs[0].exact is False


def test_custom_metrics_and_regression() -> None:
    x = torch.randn(90, 20)
    task = make_task(
        model=lambda: nn.Linear(20, 1),
        train=(x, x[:, :1]),
        test=(x, x[:, :1]),
        loss=nn.functional.mse_loss,
        metrics={"absolute": lambda output, target: (output - target).abs()},
    )
    run = quick_fit(task, max_steps=5)
    assert run.test is not None
    assert run.test["accuracy"] is None
    assert run.test["absolute"] > 0


def test_a_second_fit_starts_no_second_interpreter() -> None:
    """Its ranks are forked from the server of the first, which has imported torch."""
    quick_fit(make_task(), "ddp", ranks=2, max_steps=1)
    servers, interpreters = fork_servers(), []
    with pytest.MonkeyPatch.context() as patch:
        popen = subprocess.Popen
        patch.setattr(subprocess, "Popen", lambda *words, **more: interpreters.append(words) or popen(*words, **more))
        run = quick_fit(make_task(), "ddp", ranks=2, max_steps=1)
    assert run.status == "done"
    assert interpreters == []
    assert fork_servers() == servers


def test_optimizer_groups_by_name() -> None:
    def groups(named: Any) -> torch.optim.Optimizer:
        named = list(named)
        return torch.optim.SGD(
            [
                {"params": [item for item in named if "weight" in item[0]], "weight_decay": 0.1},
                {"params": [item for item in named if "bias" in item[0]]},
            ],
            lr=0.1,
        )

    task = make_task(optimizer=groups)
    assert distance(quick_fit(task, max_steps=10), quick_fit(task, "ddp", ranks=2, max_steps=10)) <= 1e-6


def test_a_cut_model_is_not_compiled() -> None:
    with pytest.raises(mh.Refused, match=r"pipeline does not keep the model whole, so it cannot be compiled"):
        quick_fit(make_task(), "pipeline", ranks=2, compile=True, max_steps=2)
