"""One contract for the whole table: every strategy is held to the same promises."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.record.run import PHASES
from manyhands.strategies import SHORT, TABLE, make_strategy, strategy_class
from manyhands.strategies.contract import Strategy, Traits, Worker, admit, exactness, processes, with_ranks
from manyhands.strategies.job import StepSettings
from manyhands.training.build import build
from tests.conftest import BATCH, MODELS, ROOT, SAMPLES, distance, ends_soon, make_task, quick_fit
from tests.strategies.cutting import Normed
from tests.strategies.driving import reference

STEPS = 12  # of the reference
EXACT = [
    name
    for name in TABLE
    if name != "single"
    and make_strategy(name, 4 if name == "hybrid" else None if name == "single" else 2).traits.exact is True
]
MANY = [name for name in TABLE if name != "single"]
INEXACT = [
    ("hogwild", 2),
    ("local_sgd:period=4", 2),
    ("locked:mode=free", 2),
    ("locked:mode=whole", 2),
    ("parameter_server:mode=async", 2),
    ("parameter_server:mode=bounded,staleness=2", 2),
]


def ranks_of(name: str, ranks: int) -> int:
    """hybrid needs two replicas of two stages, or of three."""
    return 2 * ranks if name == "hybrid" else ranks


def test_the_table_is_whole() -> None:
    assert {"dp", "bdp", "mp", "pp", "ps"} <= set(SHORT)
    assert {
        "data_parallel",
        "ddp",
        "model_parallel",
        "pipeline",
        "hybrid",
        "fsdp",
        "balanced_data_parallel",
        "locked",
        "parameter_server",
    } <= set(EXACT)


@pytest.mark.parametrize("name", TABLE)
def test_a_strategy_is_a_file_and_a_line(name: str) -> None:
    kind = strategy_class(name)
    assert getattr(mh, kind.__name__) is kind
    lines = (ROOT / "src" / "manyhands" / "strategies" / f"{name}.py").read_text().splitlines()
    assert len(lines) <= 285


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("tied", 2),
        ("skips", 3),  # whose skip connections pass a whole stage by
        *(
            pytest.param(kind, ranks, marks=pytest.mark.soak)
            for kind in MODELS
            for ranks in (2, 3)
            if (kind, ranks) not in (("tied", 2), ("skips", 3))
        ),
    ],
)
def test_exact_strategies_train_the_model_of_single(name: str, kind: str, ranks: int) -> None:
    run = quick_fit(make_task(kind), name, ranks=ranks_of(name, ranks), max_steps=STEPS)
    single = reference(kind, max_steps=STEPS)
    assert distance(single, run) <= 1e-6
    assert list(run.weights or {}) == list(single.weights or {})
    assert run.losses == pytest.approx(single.losses, abs=1e-5)
    assert (run.steps, run.updates, run.samples, run.exact) == (STEPS, STEPS, STEPS * BATCH, True)


def channels_last() -> nn.Module:
    return MODELS["skips"][0]().to(memory_format=torch.channels_last)


@functools.cache
def with_momentum() -> mh.Run:
    optimizer = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    return quick_fit(make_task("skips", optimizer=optimizer), max_steps=STEPS)


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=[] if name in ("ddp", "pipeline", "fsdp") else [pytest.mark.soak])
            for name in EXACT
        ),
        pytest.param("parameter_server:over=network", marks=pytest.mark.soak),
    ],
)
def test_weights_with_their_channels_last_train_the_same(name: str, tmp_path: Any) -> None:
    """Fused optimizers go through memory as it lies: weights and gradients in other orders made another model of it."""
    task = make_task("skips", model=channels_last, optimizer=functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9))
    keywords: dict[str, Any] = {"ranks": ranks_of(name, 2), "run_dir": tmp_path / "run", "checkpoint_every": 2}
    quick_fit(task, name, max_steps=4, **keywords)
    run = quick_fit(task, name, max_steps=STEPS, resume=True, **keywords)
    assert run.resumed_from is not None
    assert distance(with_momentum(), run) <= 2e-6
    assert all(value.is_contiguous() for value in (run.weights or {}).values())


class Pause(nn.Module):
    """A forward pass that takes its time: a moment without a core, in between, is not most of the step."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        return x


@pytest.mark.parametrize("name", TABLE)
def test_phases_close_the_record_is_whole_and_the_callers_model_is_untouched(name: str) -> None:
    ranks = 1 if name == "single" else ranks_of(name, 2)
    model = nn.Sequential(*MODELS["mlp"][0](), Pause())
    before = copy.deepcopy(model.state_dict())
    run = quick_fit(make_task(model=model), name, ranks=ranks, max_steps=20)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert run.phases_ms is not None
    assert run.seconds is not None
    assert set(run.phases_ms) == set(PHASES)
    assert all(value >= -1e-6 for value in run.phases_ms.values()), run.phases_ms
    assert run.seconds == pytest.approx(run.steps * sum(run.phases_ms.values()) / 1000, rel=0.02)
    assert run.phases_ms["other"] < 0.5 * sum(run.phases_ms.values())
    assert (run.ranks, run.steps, run.samples) == (ranks, 20, 20 * BATCH)
    assert [row["rank"] for row in run.per_rank] == list(range(ranks))
    processes = run.per_rank if "data_parallel" not in name else run.per_rank[:1]  # replicas share a process
    assert all(row["peak_memory_bytes"] for row in processes)
    assert run.test is not None
    assert len(run.losses) == 20
    assert all(loss is not None for loss in run.losses)
    assert (run.communication_bytes or 0) > 0 or name in ("single", "hogwild", "locked")


@pytest.mark.parametrize(("spec", "ranks"), INEXACT)
def test_inexact_strategies_learn(spec: str, ranks: int) -> None:
    run = quick_fit(make_task(), spec, ranks=ranks, epochs=3)
    losses = [loss for loss in run.losses if loss is not None]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert run.exact is False
    assert run.samples == 3 * SAMPLES
    if spec != "local_sgd:period=4":
        assert run.staleness is not None
        assert sum(run.staleness["histogram"]) == run.updates


HAVE_THEIR_OWN = ("pipeline", "model_parallel", "hybrid", "locked", "hogwild", "parameter_server")  # in their files


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in HAVE_THEIR_OWN else []) for name in MANY]
)
def test_an_exception_in_any_rank_ends_the_run_and_names_it(name: str, nothing_left: None) -> None:
    class Breaks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if _mine() and _count(self) == 4:
                raise ValueError("planted")
            return super().forward(x)

    def _count(module: Any) -> int:
        module.calls = getattr(module, "calls", 0) + 1
        return int(module.calls)

    def _mine() -> bool:
        return "RANK" in os.environ  # in a rank, not in the caller's probe

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), Breaks(16, 3))

    with (
        ends_soon(),
        pytest.raises(mh.RankFailed, match=r"rank \d of \d failed in step \d+, forward: ValueError: planted") as caught,
    ):
        quick_fit(make_task(model=model), name, ranks=ranks_of(name, 2))
    assert "planted" in str(caught.value.traceback)


@pytest.mark.parametrize("name", TABLE)
def test_strategies_are_values(name: str) -> None:
    ranks = None if name == "single" else ranks_of(name, 2)
    one, two = make_strategy(name, ranks), make_strategy(name, ranks)
    assert one == two
    assert hash(one) == hash(two)
    assert str(one).split(":")[0] == name
    assert make_strategy(str(one), ranks) == one
    kind = strategy_class(name)
    assert kind.summary
    assert one.traits.runs_on
    assert kind.__doc__


def test_short_names_and_options() -> None:
    assert make_strategy("pp:chunks=8,schedule=gpipe", 2) == mh.Pipeline(ranks=2, chunks=8, schedule="gpipe")  # type: ignore[attr-defined]
    assert (
        str(make_strategy("ps:servers=2,mode=bounded,staleness=3", 2))
        == "parameter_server:servers=2,mode=bounded,staleness=3"
    )
    assert make_strategy("hybrid:replicas=2,stages=2").ranks == 4
    with pytest.raises(mh.BadInput, match="any two give the third"):
        make_strategy("hybrid:replicas=2,stages=2", 3)
    with pytest.raises(mh.BadInput, match="give one of the two"):
        make_strategy("ddp:ranks=3", 2)
    with pytest.raises(mh.BadInput, match=r"a strategy is a name or a manyhands strategy \(found int\)"):
        make_strategy(2)  # type: ignore[arg-type]


def test_a_lone_rank_of_ddp_is_single() -> None:
    """ddp with --ranks 1 failed for want of a process group; by name its transport still makes one."""
    alone = quick_fit(make_task(), "ddp", ranks=1, max_steps=STEPS)
    grouped = quick_fit(make_task(), "ddp:transport=gloo", ranks=1, max_steps=STEPS)
    single = reference("mlp", max_steps=STEPS)
    assert distance(alone, single) == 0
    assert distance(grouped, single) < 1e-6


@pytest.mark.parametrize("name", EXACT)
def test_sync_batchnorm_is_advised_only_where_it_is_taken(name: str) -> None:
    strategy, task = make_strategy(name, ranks_of(name, 2)), make_task(model=Normed)
    _, reason = exactness(strategy, build(task, StepSettings()))
    try:
        admit(strategy, build(task, StepSettings(sync_batchnorm=True)), [])
        taken = strategy.traits.shards_batch
    except mh.Refused:
        taken = False
    assert ("sync_batchnorm" in (reason or "")) == taken


def test_the_contract_is_small() -> None:
    public = {name for name in {*vars(Strategy), *Strategy.__annotations__} if not name.startswith("_")}
    assert len(public) <= 10, sorted(public)
    assert Traits() == Traits(exact=True)  # every trait has a default
    with pytest.raises(dataclasses.FrozenInstanceError):
        Traits().exact = False  # type: ignore[misc]


def test_strategies_are_final_and_know_their_reasons() -> None:
    kinds = [strategy_class(name) for name in TABLE]
    assert all(kind.__bases__ == (Strategy,) for kind in kinds)
    for name in [*TABLE, *(spec for spec, _ in INEXACT)]:
        exact = make_strategy(name).traits.exact
        assert exact is True or isinstance(exact, str), name


def test_only_the_plain_step_may_be_captured() -> None:
    """A worker that talks to others inside its step and forgot to say so would be recorded in a CUDA graph."""

    def below(kind: type) -> list[type]:
        return [kind, *(lower for child in kind.__subclasses__() for lower in below(child))]

    for name in TABLE:
        strategy_class(name)
    ours = [kind for kind in below(Worker) if kind.__module__.startswith("manyhands.strategies")]
    assert [kind.__name__ for kind in ours if kind.not_captured is None] == ["OrdinaryWorker"]


def test_a_strategy_takes_another_number_of_ranks_with_its_options() -> None:
    fewer = with_ranks(make_strategy("parameter_server:servers=2,mode=async", 4), 2)
    assert (fewer.ranks, processes(fewer), str(fewer)) == (2, 4, "parameter_server:servers=2,mode=async")
    assert with_ranks(make_strategy("pipeline:chunks=8", 4), 3) == make_strategy("pipeline:chunks=8", 3)


@pytest.mark.parametrize(
    ("spec", "ranks", "fewer", "message"),
    [
        ("hybrid", 4, 2, "hybrid cannot continue with 2 ranks instead of 4: hybrid: replicas x stages must be"),
        ("balanced_data_parallel:shares=3+1", 2, 1, "cannot continue with 1 ranks instead of 2: .*shares"),
        ("ddp", 2, 0, "ddp cannot continue with 0 ranks instead of 2: it needs at least 1"),
        ("single", 1, 2, "single cannot continue with 2 ranks instead of 1: single has 1 rank"),
    ],
)
def test_a_number_of_ranks_that_is_tied_to_something_else_is_refused(
    spec: str, ranks: int, fewer: int, message: str
) -> None:
    with pytest.raises(mh.Refused, match=message):
        with_ranks(make_strategy(spec, ranks), fewer)
