"""ddp with gradients compressed: fewer bytes, as counted; close to the exact sums; a resumed run ends with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.errors import BadInput
from manyhands.strategies.pieces import power_sums
from tests.conftest import distance, make_task, mlp, quick_fit
from tests.strategies.driving import bytes_of, check_phases

RANKS = 3


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 3))


def test_half_the_bytes_in_bf16_and_nearly_the_same_weights() -> None:
    task = make_task(model=wide)
    whole, half = (quick_fit(task, f"ddp:compress={how}", ranks=RANKS, max_steps=20) for how in ("none", "bf16"))
    assert whole.exact
    assert whole.communication_bytes == RANKS * bytes_of(wide().parameters())
    assert half.communication_bytes == whole.communication_bytes / 2
    assert half.exact is False
    assert half.exact_reason is not None
    assert "gradients travel as bfloat16 (compress=bf16)" in half.exact_reason
    assert 0 < distance(whole, half) < 0.01
    check_phases(half)


@pytest.mark.parametrize("transport", ["shm", pytest.param("gloo", marks=pytest.mark.soak)])
def test_powersgd_sends_factors_and_still_trains(transport: str) -> None:
    steps, late = 36, 36 - power_sums.START
    task = make_task(model=wide)
    whole = quick_fit(task, "ddp", ranks=RANKS, max_steps=steps)
    small = quick_fit(task, f"ddp:compress=powersgd,transport={transport}", ranks=RANKS, max_steps=steps)
    factors = power_sums.RANK * (40 + 20) + 40 + 3 * 40 + 3  # 3 x 40 would not become smaller
    numbers = power_sums.START * sum(p.numel() for p in wide().parameters()) + late * factors
    assert small.communication_bytes == pytest.approx(RANKS * 4 * numbers / steps)
    assert small.exact is False
    assert small.losses[-1] < 0.8 * small.losses[0]
    assert 0 < distance(whole, small) < 0.1
    check_phases(small)


def test_powersgd_on_the_cpu_leaves_the_machines_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch saw a GPU, its hook waited for "cpu" as if that were one, and every rank failed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(power_sums.torchs, "torch", torch)
    power_sums.PowerSums(2, torch.device("cuda"))
    assert power_sums.torchs.torch.cuda.is_available()
    power_sums.PowerSums(2, torch.device("cpu"))
    assert not power_sums.torchs.torch.cuda.is_available()
    assert power_sums.torchs.torch.zeros is torch.zeros


def test_before_powersgd_compresses_its_sums_are_those_of_ddp() -> None:
    """torch's hook averages; a fit that took its averages for sums would train a third as fast."""
    task = make_task(model=wide)
    one, other = (quick_fit(task, f"ddp:compress={how}", ranks=RANKS, max_steps=8) for how in ("none", "powersgd"))
    assert distance(one, other) <= 1e-6


def test_what_powersgd_left_out_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    """Without every rank's memory of its errors a resumed run would end with other weights."""
    task, strategy = make_task(model=wide), "ddp:compress=powersgd"
    whole = quick_fit(task, strategy, ranks=RANKS, max_steps=24)
    quick_fit(task, strategy, ranks=RANKS, max_steps=16, run_dir=tmp_path, checkpoint_every=8)
    resumed = quick_fit(task, strategy, ranks=RANKS, max_steps=24, run_dir=tmp_path, resume=True)
    assert resumed.resumed_from is not None
    assert resumed.resumed_from["step"] == 16
    assert resumed.weights_sha256 == whole.weights_sha256
    single = quick_fit(task, "single", max_steps=25, run_dir=tmp_path, resume=True)  # any strategy goes on from it
    assert single.status == "done"


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.end = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.table(x.long().abs() % 20).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Words, r'cannot compress sparse gradients \(module "table"\); use compress=none'),
        (lambda: mlp().to(torch.bfloat16), r"compresses float32 gradients \(.* is torch.bfloat16\); use compress=none"),
    ],
)
def test_gradients_that_cannot_be_compressed_are_refused(model: object, message: str) -> None:
    strategy = mh.DDP(ranks=2, compress="bf16")
    with pytest.raises(mh.Refused, match=message):
        quick_fit(make_task(model=model), strategy, max_steps=2)


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(BadInput, match=r'ddp:compress must be one of none, bf16, powersgd \(found "zip"\)'):
        mh.DDP(ranks=2, compress="zip")
