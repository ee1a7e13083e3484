"""The next torch: a private part that is gone costs speed and one note in the record, nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import manyhands as mh
from manyhands.model import torch_internals
from manyhands.model.torch_internals import PARTS, Part
from manyhands.strategies.job import StepSettings
from manyhands.strategies.pieces.gradients_in_place import GradientsInPlace
from manyhands.strategies.pieces.updater import Updater
from manyhands.training.build import build
from manyhands.world.shm import backend as shm
from manyhands.world.shm import trial as shm_trial
from tests.conftest import ROOT, make_task, quick_fit
from tests.strategies.driving import reference

VERSION = torch.__version__


@pytest.fixture(autouse=True)
def _look_again() -> Iterator[None]:
    """What a test took away is there for the next one."""
    yield
    shm_trial._problem_of_two.cache_clear()
    torch_internals.look()


def wide_task() -> mh.Task:
    """Layers that take every short cut there is: momentum, convolutions, a product of a few rows with a large weight."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding="same"), nn.Flatten(), nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1024)
        )

    generator = torch.Generator().manual_seed(0)
    data = torch.randn(64, 1, 8, 8, generator=generator), torch.randint(3, (64,), generator=generator)
    optimizer = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    return mh.Task(model, data, nn.functional.cross_entropy, optimizer, batch_size=32, name="wide")


def same_weights(one: mh.Run, other: mh.Run, tolerance: float = 1e-5) -> bool:
    assert one.weights is not None
    assert other.weights is not None
    return all(torch.allclose(value, other.weights[name], atol=tolerance) for name, value in one.weights.items())


def gone(*_: Any, **__: Any) -> Any:
    raise RuntimeError("it went")


GONE: dict[str, tuple[Any, str, str]] = {  # where it is, its name there, a strategy that uses it
    "SGD as one kernel": (torch, "_fused_sgd_", "single"),
    "oneDNN's direct product": (torch.ops.mkldnn, "_linear_pointwise", "pipeline"),
    "kernels in place of torch's": (torch.library.Library, "_destroy", "single"),
    "the order of DDP's buckets": (dist.Reducer, "_rebuild_buckets", "ddp"),
    "dispatch modes": (torch.utils._python_dispatch, "TorchDispatchMode", "single"),
    "the backward pass of a convolution": (torch.ops.aten, "convolution_backward", "pipeline"),
    "the versions of tensors": (torch_internals.VERSIONS, "_find", "parameter_server"),
    "the hooks on parameters": (torch_internals.PARAMETER_HOOKS, "_find", "ddp"),
    "the tables of modules": (torch_internals.MODULE_TABLES, "_find", "ddp"),
    "a look into nests": (torch_internals.TREE_LEAVES, "_find", "fsdp:unit_mb=0.001"),
}


@functools.cache
def usual_run(strategy: str) -> mh.Run:
    """With all the parts, once for all that are taken away."""
    run = quick_fit(wide_task(), strategy, max_steps=4, **({} if strategy == "single" else {"ranks": 2}))
    assert [note for note in run.notes if "torch" in note] == []
    return run


@pytest.mark.parametrize("name", GONE)
def test_without_a_part_a_fit_trains_to_the_same_weights_with_one_note(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, attribute, strategy = GONE[name]
    ranks = {} if strategy == "single" else {"ranks": 2}
    usual = usual_run(strategy)
    if isinstance(place, Part) or place in (torch.ops.mkldnn, torch.ops.aten):  # cannot be, or stay, deleted
        monkeypatch.setattr(place, attribute, gone, raising=False)
    else:
        monkeypatch.delattr(place, attribute)
    without = quick_fit(wide_task(), strategy, max_steps=4, **ranks)
    [note] = [note for note in without.notes if "torch" in note]
    assert note.startswith(f"torch {VERSION} lacks {name} (")
    assert same_weights(usual, without)


def test_every_part_has_a_test_that_takes_it_away() -> None:
    assert set(GONE) == {part.name for part in PARTS}


def test_a_kernel_that_does_something_else_now_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name may stay while the meaning changes: the trial looks at the numbers."""
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *_, **__: None)
    run = quick_fit(make_task("mlp"), "single", max_steps=3)
    [note] = [note for note in run.notes if "torch" in note]
    assert "SGD as one kernel (gave [1.0, 1.0] instead of [0.5, 0.5])" in note
    assert same_weights(run, quick_fit(make_task("mlp"), "single", max_steps=3), 1e-6)


def test_without_versions_a_gradient_is_never_taken_for_missing() -> None:
    """A parameter's gradient lives in shared memory only where it shows whether backward has written there."""
    torch_internals.leave_out(["the versions of tensors"])
    weight = torch.zeros(2, requires_grad=True)
    homes = GradientsInPlace({"weight": weight}, {"weight": torch.zeros(2)})
    for _ in range(3):
        homes.lay_out()
        (weight * torch.tensor([1.0, 2.0])).sum().backward()
        found = homes.collect()
        homes.adopt(found)
        assert found["weight"] is not None
        assert found["weight"].tolist() == [1.0, 2.0]
        weight.grad = None


def test_without_versions_no_model_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut that missed a write would train something else: better refused."""
    monkeypatch.setattr(torch_internals.VERSIONS, "_find", gone)
    with pytest.raises(mh.Refused, match="does not say whether a tensor was written into"):
        quick_fit(make_task("mlp"), "pipeline", ranks=2, max_steps=1)


@pytest.mark.parametrize("strategy", ["data_parallel", "balanced_data_parallel"])
def test_without_the_tables_of_modules_replicas_are_refused(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_internals.MODULE_TABLES, "_find", gone)
    with pytest.raises(mh.Refused, match=r"does not know where torch .* keeps a module's parameters; use ddp"):
        quick_fit(make_task("mlp"), strategy, ranks=2, max_steps=1)


def test_a_schedule_is_not_told_off_for_steps_that_torch_did_not_see() -> None:
    """The fused kernel writes without `optimizer.step`, which torch's schedules ask for; without that mark, one warning."""
    layer = nn.Linear(2, 2)
    task = make_task("mlp", schedule=lambda optimizer, _: torch.optim.lr_scheduler.StepLR(optimizer, 1))
    updater = Updater(build(task, StepSettings()), list(layer.named_parameters()))
    updater.skip()  # raises where it warns: warnings are errors here


def test_a_batchnorm_of_anothers_make_counts_as_one() -> None:
    """The class that torch's have in common has no public name; InstanceNorm must not count."""

    class Own(nn.BatchNorm1d.__base__):  # type: ignore[misc]
        pass

    assert isinstance(Own(3), torch_internals.BATCHNORMS)
    assert isinstance(nn.LazyBatchNorm2d(), torch_internals.BATCHNORMS)
    assert not isinstance(nn.InstanceNorm2d(3), torch_internals.BATCHNORMS)
    assert not isinstance(nn.GroupNorm(1, 3), torch_internals.BATCHNORMS)


# ---------------------------------------------------------------- shared memory


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    # as torch 2.15 did it: a name of ours became a property without a setter
    "handle": lambda patch: patch.setattr(shm, "Work", gone),
    "group": lambda patch: patch.setattr(shm.SharedMemoryGroup, "__init__", gone),
    "collective": lambda patch: patch.setattr(shm.SharedMemoryGroup, "allreduce", gone),
}


@pytest.mark.parametrize("how", BREAKS)
def test_without_shared_memory_ranks_talk_through_gloo(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch 2.15 no group could be made, and ddp did not start."""
    usual = reference("mlp", max_steps=4)
    BREAKS[how](monkeypatch)
    run = quick_fit(make_task("mlp"), "ddp", ranks=2, max_steps=4)
    [note] = [note for note in run.notes if "torch" in note]
    assert note.startswith(f"torch {VERSION} lacks what shared memory between ranks stands on (")
    assert note.endswith("ranks talk through gloo")
    assert same_weights(usual, run)


@pytest.mark.parametrize(
    "strategy",
    [
        "fsdp", "pipeline", pytest.param("hybrid:replicas=1,stages=2", marks=pytest.mark.soak), "local_sgd:period=1",
        "parameter_server",
    ],
)  # fmt: skip
def test_every_strategy_that_uses_it_does_without(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = reference("mlp", max_steps=4)
    BREAKS["group"](monkeypatch)
    run = quick_fit(make_task("mlp"), strategy, ranks=2, max_steps=4)
    assert len([note for note in run.notes if "gloo" in note]) == 1
    assert same_weights(usual, run)


def test_shared_memory_asked_for_by_name_is_refused_before_any_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS["group"](monkeypatch)
    with pytest.raises(mh.BadInput, match=r"transport=shm does not work with torch .* \(it went\); use transport=gloo"):
        quick_fit(make_task("mlp"), "ddp:transport=shm", ranks=2, max_steps=1)
    assert quick_fit(make_task("mlp"), "ddp:transport=gloo", ranks=2, max_steps=1).notes == []


# ---------------------------------------------------------------- a newer torch


def test_an_untested_newer_torch_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0+cu140")
    run = quick_fit(make_task("mlp"), "ddp", ranks=2, max_steps=2)
    assert run.notes == ["torch 2.99.0+cu140 is newer than 2.15, the newest tested"]


@pytest.mark.parametrize(("version", "newer"), [("2.11.0", 0), ("2.15.3+cpu", 0), ("2.16.0a0+git1", 1), ("3.0.0", 1)])
def test_what_counts_as_newer(version: str, newer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert torch_internals.untested() == bool(newer)


def test_on_a_newer_torch_two_ranks_try_shared_memory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only torch's C++ asks of a group does not show in one process."""
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setattr(shm_trial, "take_part", lambda place: gone() if place.index else None)
    run = quick_fit(make_task("mlp"), "ddp", ranks=2, max_steps=2)
    [note] = run.notes
    assert note.startswith("torch 2.99.0 is newer than 2.15, the newest tested; torch 2.99.0 lacks what shared memory")
    assert "RuntimeError: it went" in note


def test_the_versions_of_the_project_agree() -> None:
    """pyproject.toml says what was tested; the package has it in one place."""
    text = (ROOT / "pyproject.toml").read_text()
    assert f"2.11 to {'.'.join(map(str, torch_internals.TESTED))}" in text


def test_the_defaults_of_a_script_do_not_matter_to_the_trials() -> None:
    """oneDNN's product takes no float64: with that as the default dtype it was taken for missing."""
    torch.set_default_dtype(torch.float64)
    try:
        torch_internals.look()
        assert torch_internals.missing() == ()
        assert not shm_trial.SHARED_MEMORY.look()
    finally:
        torch.set_default_dtype(torch.float32)
