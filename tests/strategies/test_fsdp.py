"""fsdp: the weights of single from shards, the bytes of its formula, units found by how parameters are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.model.fsdp_units import find_units
from manyhands.strategies import make_strategy
from manyhands.strategies.contract import admit
from manyhands.strategies.job import StepSettings
from manyhands.training.build import build
from tests.conftest import MODELS, Tied, distance, make_task, mlp, quick_fit
from tests.strategies.driving import check_phases, check_state_travels, drive, furthest, reference


def padded(model: nn.Module, ranks: int) -> int:
    """Bytes of all parameters, the rows of each rounded up to a multiple of the ranks."""
    return sum(-(-p.shape[0] // ranks) * ranks * p[0].numel() * p.element_size() for p in model.parameters())


@pytest.mark.soak  # test_contract.py holds every strategy to this; here with all its options
@pytest.mark.parametrize(
    ("kind", "ranks", "unit_mb"), [("mlp", 2, 0), ("mlp", 3, 1), ("skips", 2, 0), ("tied", 3, 0), ("dict", 2, 0)]
)
def test_it_trains_the_model_of_single(kind: str, ranks: int, unit_mb: int) -> None:
    run = quick_fit(make_task(kind), f"fsdp:unit_mb={unit_mb}", ranks=ranks, max_steps=30)
    assert distance(reference(kind), run) <= 1e-6
    assert run.exact is True
    assert run.losses == pytest.approx(reference(kind).losses, abs=1e-6)


def test_accumulation_and_clipping_are_those_of_single_and_save_traffic() -> None:
    keywords: dict[str, Any] = {"accumulate": 3, "clip": 0.05, "epochs": 1, "max_steps": None}
    one, many = reference("skips", **keywords), quick_fit(make_task("skips"), "fsdp:unit_mb=0", ranks=2, **keywords)
    assert distance(one, many) <= 1e-6
    assert many.updates == one.updates == 12
    size = padded(MODELS["skips"][0](), 2)
    clipping = 2 * 4  # each rank's sum of squares
    assert many.communication_bytes == pytest.approx(12 * (size + 2 * size + clipping) / many.steps)


@pytest.mark.parametrize(("unit_mb", "gathers"), [(1, 1), (0, 2)])
def test_bytes_are_those_of_the_formula(unit_mb: int, gathers: int) -> None:
    run = quick_fit(make_task(), f"fsdp:unit_mb={unit_mb}", ranks=3, max_steps=5)
    size = padded(mlp(), 3)
    assert run.communication_bytes == gathers * size + 3 * size
    check_phases(run)


@pytest.mark.soak
def test_its_state_is_that_of_single() -> None:
    check_state_travels("fsdp:unit_mb=0", 3)


def test_adam_moments_come_back_whole() -> None:
    task = make_task(optimizer=lambda named: torch.optim.AdamW(named, lr=1e-3))
    weights, state = drive(task, "fsdp", 3, 0, 5)
    again, kept = drive(task, "fsdp", 2, 5, 5, (weights, state))
    assert furthest(weights, again) == 0
    for name, values in state["optimizer"]["state"].items():
        assert values.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert values["exp_avg"].shape == weights[name].shape
        assert all(torch.equal(values[key], kept["optimizer"]["state"][name][key]) for key in values)
    assert furthest(drive(task, "single", 1, 0, 5)[0], weights) <= 1e-5


def test_empty_shards_and_frozen_and_unused_parameters_are_handled() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.spare = nn.Linear(20, 8), nn.Linear(8, 3), nn.Linear(3, 3)
            self.first.weight.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)))

    task = make_task(model=Spare, batch_size=2)
    one, many = quick_fit(task, max_steps=10), quick_fit(task, "fsdp:unit_mb=0", ranks=3, max_steps=10)
    assert distance(one, many) <= 1e-6


def test_batchnorm_over_all_ranks_is_that_of_single() -> None:
    task = make_task(model=lambda: nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    one = quick_fit(task, max_steps=20)
    many = quick_fit(task, "fsdp", ranks=2, max_steps=20, sync_batchnorm=True)
    assert many.exact is True
    assert distance(one, many) <= 1e-5


def test_one_rank_is_single() -> None:
    assert distance(reference(), quick_fit(make_task(), "fsdp", ranks=1, max_steps=30)) == 0


def test_bf16_trains_and_is_not_called_exact() -> None:
    run = quick_fit(make_task(), "fsdp", ranks=2, precision="bf16", max_steps=60)
    assert run.exact is False
    assert run.losses[-1] < run.losses[0]  # type: ignore[operator]


class Reaching(nn.Module):
    """Uses a layer's weight while the layer itself does not run, as tied decoders often do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])
        self.dense = nn.Linear(5, 6)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        hidden = self.dense(x["values"]) + self.embed(x["kind"])
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        return nn.functional.linear(hidden, self.embed.weight)[:, :3]


def test_units_are_blocks_whose_parameters_only_they_use() -> None:
    example = {"kind": torch.tensor([1, 2]), "values": torch.zeros(2, 5)}
    assert find_units(Reaching(), 0, lambda model: model(example)) == ["blocks.0", "blocks.1", "dense"]
    assert find_units(Reaching(), 160, lambda model: model(example)) == ["blocks.0", "blocks.1"]  # dense: 144 bytes
    assert find_units(Tied(), 0, lambda model: model(torch.zeros(2, 12))) == ["middle", "head"]
    assert find_units(mlp(), 0, lambda model: 1 / 0) == []
    run = quick_fit(make_task("dict", model=Reaching), "fsdp:unit_mb=0", ranks=2, max_steps=10)
    assert distance(quick_fit(make_task("dict", model=Reaching), max_steps=10), run) <= 1e-6


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_refusals_name_the_reason() -> None:
    mixed = make_task(model=lambda: nn.Sequential(nn.Linear(20, 3), nn.Linear(3, 3).double()))
    with pytest.raises(mh.Refused, match="fsdp sums gradients of one type, but parameters are float32, float64"):
        quick_fit(mixed, "fsdp", ranks=2)
    sparse = make_task(
        model=lambda: nn.Sequential(nn.EmbeddingBag(9, 3, sparse=True)),
        train=(torch.zeros(40, 2).long(), torch.zeros(40).long()),
    )
    with pytest.raises(
        mh.Refused, match=r'fsdp cannot shard sparse gradients \(module "0"\); use ddp or parameter_server'
    ):
        quick_fit(sparse, "fsdp", ranks=2)

    scripted = make_task(model=lambda: torch.jit.script(nn.Linear(20, 3)))
    with pytest.raises(
        mh.Refused, match="fsdp wraps the modules of a model, which scripted ones do not allow; use ddp"
    ):
        make_strategy("fsdp", 2).check(build(scripted, StepSettings()))
    spread = make_task(model=lambda: nn.Sequential(nn.Linear(20, 3), nn.Linear(3, 3, device="meta")))
    with pytest.raises(
        mh.Refused, match="fsdp shards a model over ranks, but this one spread itself over cpu, meta; use"
    ):
        make_strategy("fsdp", 2).check(build(spread, StepSettings()))
    with pytest.raises(mh.BadInput, match="fsdp:unit_mb must be 0 or more"):
        mh.FSDP(ranks=2, unit_mb=-1)  # type: ignore[attr-defined]


def test_ranks_on_devices_of_two_kinds_are_refused_before_any_starts() -> None:
    """It hung: torch's mesh is made for one kind, and the ranks of the other never came."""
    job, strategy = build(make_task(), StepSettings()), make_strategy("fsdp", ranks=2)
    with pytest.raises(
        mh.Refused, match=r"fsdp needs ranks on one kind of device \(found cuda:0, cpu\); use --device cpu or"
    ):
        admit(strategy, job, [torch.device("cuda", 0), torch.device("cpu")])
    admit(strategy, job, [torch.device("cuda", 0), torch.device("cuda", 1)])
    admit(make_strategy("ddp", ranks=2), job, [torch.device("cuda", 0), torch.device("cpu")])
