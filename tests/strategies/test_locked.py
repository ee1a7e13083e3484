"""locked: turns is exact, free and whole learn one update at a time, and a dead rank gives its lock back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import manyhands as mh
from manyhands.errors import PeerMissing
from manyhands.world.health.process_lock import ProcessLock
from manyhands.world.shared_memory import anonymous_file
from tests.conftest import distance, make_task, mlp, quick_fit
from tests.strategies.driving import bytes_of, check_phases, check_state_travels, halving, reference
from tests.strategies.sharing import (
    Normed,
    check_every_sample_is_read_once,
    check_failures_end_the_run,
    momentum,
    sparse_task,
)


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("skips", 3), *(pytest.param(*row, marks=pytest.mark.soak) for row in [("mlp", 2), ("tied", 2), ("dict", 3)])],
)
def test_turns_is_exact(kind: str, ranks: int, nothing_left: None) -> None:
    run = quick_fit(make_task(kind), "locked", ranks=ranks, max_steps=30)
    assert distance(reference(kind), run) <= 1e-6
    assert run.exact is True
    assert run.updates == run.steps == 30
    assert run.staleness is None
    check_phases(run)


def test_turns_with_momentum_schedule_clipping_and_accumulation() -> None:
    task = make_task(optimizer=momentum, schedule=halving)
    options = {"accumulate": 3, "clip": 0.5, "epochs": 1}
    one, many = quick_fit(task, **options), quick_fit(task, "locked", ranks=3, **options)
    assert distance(one, many) <= 1e-6
    assert many.updates == 12
    assert many.epochs[0]["learning_rate"] == one.epochs[0]["learning_rate"]


def test_turns_hands_over_one_gradient_a_rank_and_sparse_ones_as_rows() -> None:
    run = quick_fit(make_task(), "locked", ranks=3, max_steps=10)
    assert run.communication_bytes == 3 * bytes_of(mlp().parameters())
    task = sparse_task()
    one, many = quick_fit(task, max_steps=30), quick_fit(task, "locked", ranks=2, max_steps=30)
    assert distance(one, many) <= 5e-6  # weights of up to 3, and rows are summed in another order
    whole = 2 * bytes_of([one.weights[name] for name in one.weights])  # type: ignore[index]
    assert many.communication_bytes is not None
    assert 0 < many.communication_bytes < 2 * whole


def test_state_travels_between_strategies() -> None:
    check_state_travels("locked", 2)


def test_free_updates_as_they_come() -> None:
    run = quick_fit(make_task(optimizer=momentum), "locked:mode=free", ranks=2, epochs=2)
    assert run.exact is False
    assert run.updates == 2 * run.steps
    assert run.samples == 2 * 1003
    assert run.staleness is not None
    assert sum(run.staleness["histogram"]) == run.updates
    assert run.epochs[-1]["loss"] < 0.8 * run.epochs[0]["loss"]
    assert run.communication_bytes == 0
    check_phases(run)


def test_whole_runs_nothing_in_parallel() -> None:
    run = quick_fit(make_task("skips"), "locked:mode=whole", ranks=2, epochs=1, precision="bf16")
    assert run.staleness == {"mean": 0.0, "max": 0, "histogram": [run.updates]}
    assert run.losses[-1] is not None
    assert run.losses[0] is not None
    assert run.losses[-1] < run.losses[0]
    assert run.phases_ms is not None
    assert run.phases_ms["wait"] > 0
    overlap = float(next(note for note in run.notes if note.startswith("overlap")).split()[3])
    assert 0 < overlap <= 1.01


def test_one_rank_is_single() -> None:
    assert distance(reference(), quick_fit(make_task(), "locked:mode=free", ranks=1, max_steps=30)) <= 1e-6


def test_batchnorm_is_averaged_or_shared() -> None:
    task = make_task(model=Normed)
    apart = quick_fit(task, "locked", ranks=2, max_steps=10)
    assert apart.exact is False
    assert any("BatchNorm" in note for note in apart.notes)
    together = quick_fit(task, "locked", ranks=2, max_steps=10, sync_batchnorm=True)
    assert together.exact is True
    assert distance(quick_fit(task, max_steps=10), together) <= 1e-5


def test_every_sample_is_read_once() -> None:
    check_every_sample_is_read_once("locked", 3)
    check_every_sample_is_read_once("locked:mode=free,partition=fixed", 3)


def test_a_failing_or_killed_rank_ends_the_run(nothing_left: None) -> None:
    check_failures_end_the_run("locked")
    check_failures_end_the_run("locked:mode=whole")  # killed while it holds the lock


def test_the_lock_of_a_killed_process_comes_free() -> None:
    fd = anonymous_file(64)
    code = (
        "import sys, time; from manyhands.world.health.process_lock import ProcessLock; "
        f"ProcessLock({fd}).acquire(); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], pass_fds=[fd], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == b"held\n"
        lock = ProcessLock(fd)
        assert not lock.try_acquire()
        with pytest.raises(PeerMissing, match="the lock was not released: its holder is stuck"):
            lock.acquire(patience=0.2)
        holder.kill()
        holder.wait()
        lock.acquire()
        lock.release()
    os.close(fd)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("locked:mode=maybe", 'locked:mode must be one of turns, free, whole .found "maybe"'),
        ("locked:scale=shard", "mode=turns makes the updates of single; scale need mode=free or whole"),
        ("locked:optimizer=mine", 'locked:optimizer must be one of shared, rank .found "mine"'),
    ],
)
def test_bad_options(strategy: str, message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        quick_fit(make_task(), strategy, ranks=2)


def test_refusals() -> None:
    with pytest.raises(
        mh.Refused, match="ranks do not meet in mode=free, so sync_batchnorm cannot work; use mode=turns"
    ):
        quick_fit(make_task(), "locked:mode=free", ranks=2, sync_batchnorm=True)
    with pytest.raises(
        mh.Refused, match=r"cannot share the state of Rprop .*step_size does not start at zero.*optimizer=rank"
    ):
        quick_fit(make_task(optimizer=torch.optim.Rprop), "locked:mode=whole", ranks=2)
