"""Every strategy's way on CUDA, its ranks sharing one GPU."""

from __future__ import annotations

import functools

import pytest
import torch

import manyhands as mh
from manyhands.strategies import TABLE, make_strategy
from tests.conftest import distance, make_task, quick_fit

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
STEPS = 30


@functools.cache
def reference() -> mh.Run:
    return quick_fit(make_task(), device="cuda", max_steps=STEPS)


@pytest.mark.parametrize("name", [name for name in TABLE if name != "single"])
def test_a_strategy_trains_on_the_gpu(name: str) -> None:
    strategy = make_strategy(name, 4 if name == "hybrid" else 2)
    run = quick_fit(make_task(), strategy, device="cuda", max_steps=STEPS)
    assert run.status == "done"
    assert run.steps == STEPS
    assert {row["device"] for row in run.per_rank} == {"cuda:0"}
    known = [row["peak_memory_bytes"] for row in run.per_rank if row["peak_memory_bytes"] is not None]
    assert known  # threads of one process on one GPU have one figure between them
    assert min(known) > 0
    assert run.phases_ms is not None
    assert run.seconds is not None
    assert sum(run.phases_ms.values()) * run.steps == pytest.approx(run.seconds * 1e3, rel=0.02)
    if strategy.traits.exact is True:
        assert distance(run, reference()) < 1e-5
    else:
        assert run.losses[-1] < run.losses[0]


def test_one_rank_of_ddp_over_nccl() -> None:
    run = quick_fit(make_task(), mh.DDP(ranks=1, transport="nccl"), device="cuda", max_steps=STEPS)
    assert distance(run, reference()) < 1e-5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ddp_and_single_see_the_same_loss(precision: str) -> None:
    one = quick_fit(make_task("skips"), device="cuda", max_steps=STEPS, precision=precision)
    two = quick_fit(make_task("skips"), "ddp", ranks=2, device="cuda", max_steps=STEPS, precision=precision)
    assert two.losses == pytest.approx(one.losses, rel=0.02 if precision == "bf16" else 1e-3)
