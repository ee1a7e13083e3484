"""What is tried with which job, and what to type for it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset

from manyhands.record.run import PHASES, Run
from manyhands.strategies import make_strategy
from manyhands.studies.diagnose import changes as module
from manyhands.studies.diagnose.advice import Advice, advice
from manyhands.studies.diagnose.changes import Change, changes
from manyhands.studies.diagnose.job import Diagnosed
from manyhands.studies.diagnose.whole import Parts
from manyhands.studies.slices import Variant
from manyhands.training.settings import FitSettings
from tests.conftest import make_task


class Rows(Dataset):
    def __init__(self) -> None:
        self.transform = lambda row: row + time.monotonic_ns() % 7

    def __len__(self) -> int:
        return 1003

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(torch.zeros(20)), index % 3


def diagnosed(
    spec: str = "single", task: dict[str, Any] | None = None, ranks: int | None = None, **keywords: Any
) -> Diagnosed:
    settings = FitSettings.of(source="my_task.py", **keywords)
    return Diagnosed.of(make_task(**(task or {})), make_strategy(spec, ranks), settings)


def base(threads: int = 2, **phases: float) -> Run:
    run = Run("task", "single", threads=threads, device="cpu", batch_size=30)
    run.phases_ms = {name: phases.get(name, 0.0) for name in PHASES}
    return run


def labels(job: Diagnosed, run: Run) -> tuple[dict[str, Change], dict[str, str]]:
    tried, skipped = changes(job, run, budget=120)
    return {one.label: one for one in tried}, {one["change"]: one["reason"] for one in skipped}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.studies.diagnose.job.available_cores", lambda: 2)


def test_what_the_phases_leave_no_room_for_is_not_tried() -> None:
    tried, skipped = labels(diagnosed(task={"train": Rows()}), base(load=0.2, forward=3, backward=6, update=0.1))
    assert not [label for label in tried if "worker" in label or "kept" in label]
    assert skipped["loader workers"] == "reading takes 2% of the step"
    assert skipped["fewer updates"] == "updates take 1% of the step"
    assert labels(diagnosed(), base(load=5, forward=1))[1]["loader workers"] == "the data is in memory"


def test_a_slow_reader_is_tried_without_reading_and_with_workers() -> None:
    tried, _ = labels(diagnosed(task={"train": Rows()}), base(load=9, forward=1))
    assert tried["batches kept in memory"].measures == "loading"
    assert tried["batches kept in memory"].command is None
    assert tried["transform made once"].measures == "augmentation"
    assert tried["4 loader workers"].command == "manyhands train my_task.py single --loader-workers 4"
    assert tried["4 loader workers"].variant.fewest > 2 * 4  # it lives on what was read ahead for so long


def test_a_transform_inside_a_subset_is_called_once() -> None:
    frozen = module._with_frozen_transform(Subset(Rows(), range(10)))
    assert frozen is not None
    assert torch.equal(frozen[1][0], frozen[2][0])
    assert frozen[1][1] != frozen[2][1]
    assert module._with_frozen_transform(torch.utils.data.TensorDataset(torch.zeros(3))) is None


def test_crowds_are_thinned_out() -> None:
    tried, _ = labels(diagnosed("ddp", ranks=8), base(threads=1, forward=5, backward=5))
    assert tried["2 ranks, as many as cores"].measures == "cores"
    tried, _ = labels(diagnosed(threads=8), base(threads=8, forward=5, backward=5))
    assert {label: tried[label].measures for label in tried if "thread" in label} == {
        "4 threads per rank": "threads", "2 threads per rank": "threads", "one thread per rank": "threads",
    }  # fmt: skip
    crowded = diagnosed("ddp", task={"train": Rows()}, ranks=2, loader_workers=8)
    tried, _ = labels(crowded, base(threads=1, load=0.1, forward=5, backward=5))
    assert tried["one loader worker"].measures == "cores"


def test_strategies_are_tried_without_what_holds_ranks_together() -> None:
    talking = base(threads=1, forward=3, backward=3, communication=4)
    tried, _ = labels(diagnosed("ddp:bucket_mb=0.1", ranks=2), talking)
    assert tried["no synchronisation"].measures == "communication"
    assert tried["an average every 8 updates"].command == "manyhands train my_task.py local_sgd --ranks 2"
    assert tried["buckets of 25 MB"].command == "manyhands train my_task.py ddp --ranks 2"
    assert labels(diagnosed("locked", ranks=2), talking)[0]["hogwild with 2 ranks"].measures == "lock"
    assert labels(diagnosed("data_parallel", ranks=2), talking)[0]["ddp with 2 ranks"].measures == "launch"
    cut = labels(diagnosed("pipeline:balance=1+4,chunks=2", ranks=2), talking)[0]
    assert cut["layers cut by their time"].command == "manyhands train my_task.py pipeline:chunks=2 --ranks 2"
    quiet = labels(diagnosed("ddp", ranks=2), base(threads=1, forward=5, backward=5, wait=0.1))[1]
    assert quiet["no synchronisation"] == "ranks talk and wait for 1% of the step"


def test_a_command_repeats_what_the_job_was_told() -> None:
    job = diagnosed("ddp", ranks=2, accumulate=4, sync_batchnorm=True, clip=1.0)
    expected = "manyhands train my_task.py ddp --ranks 2 --accumulate 4 --clip 1.0 --sync-batchnorm --threads 1"
    assert job.command(threads=1) == expected
    told = replace(diagnosed(), typed={"batch_size": 64, "seed": None})
    assert told.command(loader_workers=2) == "manyhands train my_task.py single --batch-size 64 --loader-workers 2"
    assert told.command(batch_size=256) == "manyhands train my_task.py single --batch-size 256"


# ------------------------------------------------------------ advice


def ran(milliseconds: float) -> Run:
    run = Run("task", "single", batch_size=10)
    run.durations_ms = [milliseconds] * 4
    return run


def test_the_best_comes_first_and_of_equals_the_one_that_trains_the_same() -> None:
    job = diagnosed()
    as_it_is = job.variant()
    as_it_is.slices = [ran(10), ran(10), ran(10)]

    def change(label: str, times: list[float], training: str | None = None) -> Change:
        variant = Variant(label, job.task, job.strategy, job.settings)
        variant.slices = [ran(time) for time in times]
        return Change(variant, command=f"type {label}", training=training)

    tried = [
        change("much", [2, 2, 2], "otherwise"),
        change("as much", [2.05, 2.05, 2.05]),
        change("some", [5, 5, 5]),
        change("little", [9.5, 9.5, 9.5]),
        change("by chance", [5, 5, 12]),
    ]
    whole = Parts(0.1, 0.0, 10.0, 0.0, 0.0, 0.0)
    found = advice(job, as_it_is, tried, (whole, whole))
    assert [one.label for one in found] == ["as much", "much", "some"]


def test_what_passes_beside_the_steps_has_its_advice() -> None:
    job = diagnosed(epochs=10, run_dir="run", checkpoint_every=1)
    whole = Parts(start=1.0, own_start=0.0, steps=10.0, evaluation=20.0, checkpoint=9.0, pause=0.0)
    found: list[Advice] = advice(job, job.variant(), [], (whole, whole))
    assert [(one.label, round(one.gain.middle, 2)) for one in found] == [
        ("evaluation at the end only", round(40 / 22, 2)),
        ("a checkpoint per minute", round(40 / 31, 2)),
    ]
    assert found[0].command == "manyhands train my_task.py single --epochs 10 --checkpoint-every 1 --eval-every 10"
    assert found[1].command.endswith("--checkpoint-every 60s")
