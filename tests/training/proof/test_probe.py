"""What is tried before `exact` is promised, without starting a rank. The models are those of the zoo."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyhands as mh
from manyhands.strategies.contract import exactness
from manyhands.strategies.job import Job, StepSettings
from manyhands.training.build import build
from manyhands.training.proof import prove
from manyhands.training.proof.probe import probe
from tests.conftest import make_task, quick_fit
from tests.zoo.models import LABELS, SGD, VECTORS, ZOO, Net


def proven(task: mh.Task) -> Job:
    job = build(task, StepSettings())
    probe(job, [torch.device("cpu")])
    return job


@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo_is_seen_for_what_it_is(name: str) -> None:
    case, job = ZOO[name], proven(ZOO[name].task())
    assert job.proof.unchecked is None
    assert job.proof.divides is None
    promised, reason = exactness(mh.DDP(ranks=2), job)
    in_chunks, why_not = exactness(mh.Pipeline(ranks=2, chunks=4), job)
    assert promised == (case.why is None), reason
    assert in_chunks == (case.why is None and case.chunks is None), why_not
    if case.why is not None:
        assert re.search(case.why, str(reason)), reason


def task_of(model: Any, **rest: Any) -> mh.Task:
    return mh.Task(
        **{
            "model": model,
            "train": (VECTORS, LABELS),
            "loss": F.cross_entropy,
            "optimizer": SGD,
            "batch_size": 8,
            **rest,
        }
    )


def test_nothing_it_tries_reaches_the_model_or_the_generators() -> None:
    """A buffer that counts calls would otherwise begin with the calls of the proof."""
    before = torch.get_rng_state()
    job = proven(ZOO["a buffer that counts"].task())
    assert float(job.model.calls) == 0  # type: ignore[arg-type]
    assert torch.equal(before, torch.get_rng_state())


def test_data_sorted_by_class_does_not_hide_class_weights() -> None:
    """The first samples in storage are all of one class, for which every weighted mean is a plain one."""
    order = LABELS.argsort()
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9, 1, 1, 0.1]))
    job = proven(task_of(Net, train=(VECTORS[order], LABELS[order]), loss=weighted))
    assert job.proof.mixed is None
    assert str(job.weight) == "class weights of target"


def test_a_model_too_slow_to_be_tried_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "SAMPLES", ((-1.0, 16),))
    run = mh.fit(task_of(Net), "ddp", ranks=2, max_steps=1, progress=False)
    assert run.exact is True
    assert any("exact was not checked before the start: a pass over two samples takes" in note for note in run.notes)


def test_a_model_for_whole_batches_only_is_refused_before_the_start() -> None:
    """It failed on the ranks, in the first step, with a message about shapes."""

    class Fixed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.view(8, -1))  # type: ignore[no-any-return]

    with pytest.raises(
        mh.Refused, match=r"ddp computes parts of a batch, but 2 of 8 samples cannot be computed alone: "
    ):
        mh.fit(task_of(Fixed), "ddp", ranks=2, progress=False)


def test_augmentation_that_mixes_samples_is_named() -> None:
    job = proven(task_of(Net, augment=lambda x, keys: 0.5 * x + 0.5 * x.roll(1, 0)))
    assert job.proof.mixed == "task.augment mixes samples of a batch, and every rank has a part of each batch"


def test_two_fits_of_a_model_that_draws_from_pythons_random_are_equal() -> None:
    """Only torch's generator was seeded for each step, so two `single` fits differed."""
    once, again = (mh.fit(ZOO["python's random"].task(), max_steps=5, progress=False) for _ in range(2))
    assert once.weights_sha256 == again.weights_sha256


def test_a_loss_that_refers_to_the_model_sees_the_model_that_is_trained() -> None:
    """The copy that is trained and the one in the loss's closure were two: the penalty had no gradient."""
    net = nn.Linear(16, 5)
    penalised = task_of(net, loss=lambda o, t: 0.0 * F.cross_entropy(o, t) + net.weight.pow(2).sum())
    run = mh.fit(penalised, max_steps=10, progress=False)
    assert float(run.weights["weight"].norm()) < 0.5 * float(net.weight.detach().norm())


def test_a_module_that_cannot_travel_names_the_factory_as_the_cure() -> None:
    net = Net()
    net.a = nn.utils.parametrizations.weight_norm(net.a)
    with pytest.raises(
        mh.BadInput, match=r"task.model \(Net\) cannot be sent to the ranks \(.*\); give the function that makes"
    ):
        mh.fit(task_of(net), progress=False)


def test_a_factory_that_makes_another_model_each_time_is_refused() -> None:
    sizes = iter(range(8, 100))

    def another() -> nn.Module:
        width = next(sizes)
        return nn.Sequential(nn.Linear(16, width), nn.Linear(width, 5))

    with pytest.raises(mh.BadInput, match=r"task\.model makes another model each time it is called"):
        build(task_of(another), StepSettings()).copies()


class Asking(torch.optim.SGD):
    """Says only when it is stepped that it wants a closure, as published SAMs do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is not None, "requires closure"
        super().step(closure)


class TwoFigures:
    def __init__(self, optimizer: torch.optim.Optimizer, updates: int):
        pass

    def step(self, loss: float, accuracy: float) -> None:
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": torch.optim.LBFGS},
            r"LBFGS.step needs closure \(it computes the loss several times per update\)",
        ),
        ({"optimizer": Asking}, r"Asking.step needs closure \(it computes the loss several times per update\)"),
        (
            {"schedule": TwoFigures},
            "TwoFigures.step needs loss and accuracy, but a schedule is given one figure at most",
        ),
        ({"schedule": lambda o, n: None}, r"task.schedule must make a learning rate scheduler \(found NoneType\)"),
        ({"schedule": lambda o, n: 1 / 0}, "task.schedule failed for 8 updates: ZeroDivisionError"),
    ],
)
def test_optimizers_and_schedules_that_cannot_be_used_are_refused(changes: dict[str, Any], message: str) -> None:
    """They failed on the ranks in the first update."""
    with pytest.raises(mh.BadInput, match=message):
        mh.fit(task_of(Net, **changes), progress=False)


class Together(torch.optim.SGD):
    """Its step depends on the norm of all gradients."""

    def step(self, closure: Any = None) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        total = torch.stack([g.norm() for g in gradients]).norm()
        for gradient in gradients:
            gradient /= total
        super().step()


class Coarse(torch.optim.SGD):
    """Rounds gradients to bf16 first, as Muon does."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.grad.bfloat16().float()
        super().step()


def test_how_an_optimizer_treats_its_parameters_is_found_by_trying() -> None:
    def traits(optimizer: Any) -> tuple[bool, bool, bool]:
        found = build(task_of(Net, optimizer=optimizer), StepSettings()).optimizer_traits
        return found.joins_rows, found.joins_tensors, found.amplifies

    assert traits(partial(torch.optim.AdamW, lr=0.1)) == (False, False, False)
    assert traits(partial(torch.optim.Adafactor, lr=0.1)) == (True, False, False)
    assert traits(partial(Together, lr=0.1)) == (True, True, False)
    assert traits(partial(Coarse, lr=0.1)) == (False, False, True)


def test_an_optimizer_that_amplifies_rounding_is_not_promised_exact() -> None:
    job = proven(task_of(Net, optimizer=partial(Coarse, lr=0.1)))
    assert exactness(mh.DDP(ranks=2), job) == (
        False,
        "the optimizer amplifies rounding: sums in another order end in other weights",
    )
    assert exactness(mh.Single(), job) == (True, None)


@pytest.mark.parametrize("strategy", ["model_parallel", "pipeline", "fsdp"])
def test_an_optimizer_that_looks_at_all_parameters_is_refused_where_they_are_spread(strategy: str) -> None:
    with pytest.raises(mh.Refused, match=rf"{strategy} updates .* but this optimizer looks at .* together.*use ddp"):
        mh.fit(task_of(Net, optimizer=partial(Together, lr=0.1)), strategy, ranks=2, progress=False)


def test_fsdp_refuses_what_needs_whole_parameters() -> None:
    """Hooks vanished with the parameters they were on; what the forward pass wrote was dropped with the gathered copy."""
    for name, message in (
        (
            "a hook that masks a gradient",
            'fsdp replaces parameters by shards, and the hook on "a.weight" with them; use ddp',
        ),
        ("a teacher that follows", 'drops what it writes into "teacher.weight"; use ddp'),
    ):
        with pytest.raises(mh.Refused, match=re.escape(message)):
            mh.fit(ZOO[name].task(), "fsdp", ranks=2, progress=False)


def test_ddp_names_the_option_for_a_parameter_that_a_batch_misses() -> None:
    """Torch's own message came a step later, and spoke of reductions that had not finished."""

    class Rare(Net):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Any:
            return super().forward(x) + (0 if x.max() > 100 else self.extra(x))

    vectors = VECTORS.clone()
    seen = proven(task_of(Rare)).order
    late = int(seen.indices(next(iter(seen.steps(0, 7))))[0])  # in the last step of the epoch
    vectors[late] = 101.0
    with pytest.raises(
        mh.RankFailed, match=r'the loss did not reach "extra.weight" with this batch.*use ddp:find_unused=true'
    ):
        mh.fit(task_of(Rare, train=(vectors, LABELS)), "ddp", ranks=2, progress=False)


class Unreadable(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise OSError("no such picture")


def test_a_first_sample_that_cannot_be_read_is_bad_input() -> None:
    with pytest.raises(mh.BadInput, match=r"task\.train: sample 0 cannot be read: OSError: no such picture"):
        quick_fit(make_task(train=Unreadable()), max_steps=1)


class Masked(Net):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return super().forward(x if mask is None else x * mask)


def test_a_model_that_another_call_would_suit_is_refused_with_its_name() -> None:
    """A pair for `forward(x, mask=None)` stays one input, and a rank failed with an error about tuples."""
    with pytest.raises(mh.BadInput, match=r'fails when it is called as model\(input\) .* works as .*; set call="args"'):
        proven(task_of(Masked, train=((VECTORS, VECTORS > 0), LABELS)))
    assert proven(task_of(Masked, train=((VECTORS, VECTORS > 0), LABELS), call="args")).proof.unchecked is None


def test_the_call_is_found_from_what_the_augmentation_gives() -> None:
    task = task_of(Masked, augment=lambda x, keys: {"x": x, "mask": x > 0})
    assert proven(task).calling.call == "kwargs"
