"""A loss that is a mean over tokens, boxes or weighted classes is exact under every strategy that promises to be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyhands as mh
from manyhands.errors import RankFailed
from tests.conftest import distance, quick_fit

WORDS, LENGTH, SAMPLES = 11, 6, 26  # the last batch is short, its shard on a third rank is empty
EXACT = [
    ("ddp", 2), ("ddp", 3), ("fsdp", 2), ("data_parallel", 2), ("balanced_data_parallel", 3), ("model_parallel", 2),
    ("pipeline:chunks=2", 2), ("pipeline:chunks=4,schedule=gpipe", 2), ("hybrid:replicas=2,stages=2,chunks=2", 4),
    ("locked", 2), ("parameter_server", 2), ("parameter_server:over=network,servers=2", 2),
]  # fmt: skip
ACCUMULATED = [
    ("ddp", 3), ("fsdp", 2), ("balanced_data_parallel", 3), ("pipeline:chunks=2", 2),
    ("hybrid:replicas=2,stages=2,chunks=2", 4), ("locked", 2), ("parameter_server:over=network,servers=2", 2),
]  # fmt: skip
MATRIX = [
    *((*which, 3, 0.05) for which in ACCUMULATED),
    *((*which, 1, None) for which in EXACT if which not in ACCUMULATED),
    *(pytest.param(*which, 1, None, marks=pytest.mark.soak) for which in ACCUMULATED),
]


class Language(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8, sparse=sparse)
        self.middle, self.head = nn.Linear(8, 16), nn.Linear(16, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.embed(x)))).transpose(1, 2)


def padded(empty: int = 5) -> tuple[Tensor, Tensor]:
    """Sentences of 0 to 6 words; whole shards have none."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=generator)
    y = torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=generator)
    lengths = torch.randint(0, LENGTH + 1, (SAMPLES,), generator=generator)
    lengths[:empty] = 0
    y[torch.arange(LENGTH)[None] >= lengths[:, None]] = -100
    return x, y


def tokens(target: Tensor) -> Tensor:
    return (target != -100).sum()


def over_clamped(output: Tensor, target: Tensor) -> Tensor:
    """A mean over tokens that people write themselves; its gradient is 0 / 0 where there are none."""
    each = F.cross_entropy(output, target.clamp(min=0), reduction="none") * (target != -100)
    return each.sum() / (target != -100).sum()


def language(**changes: Any) -> mh.Task:
    recipe: dict[str, Any] = {
        "model": Language,
        "train": padded(),
        "test": padded(),
        "loss": F.cross_entropy,
        "optimizer": partial(torch.optim.SGD, lr=0.5, momentum=0.9),
        "batch_size": 4,
        "weight": tokens,
    }
    return mh.Task(**{**recipe, **changes})


def check(task: mh.Task, strategy: str, ranks: int, one: mh.Run | None = None, **settings: Any) -> None:
    one = one or quick_fit(task, **settings)
    many = quick_fit(task, strategy, ranks=ranks, **settings)
    assert (many.exact, many.exact_reason) == (True, None)
    assert distance(one, many) <= 1e-5
    assert many.losses == pytest.approx(one.losses, rel=1e-5)
    assert [epoch["loss"] for epoch in many.epochs] == pytest.approx([epoch["loss"] for epoch in one.epochs], rel=1e-5)
    assert many.test is not None
    assert one.test is not None
    assert many.test["loss"] == pytest.approx(one.test["loss"], rel=1e-5)
    assert many.samples == one.samples


@pytest.fixture(scope="module")
def references() -> dict[tuple[int, float | None], mh.Run]:
    return {(k, clip): quick_fit(language(), accumulate=k, clip=clip) for k, clip in ((1, None), (3, 0.05))}


@pytest.mark.parametrize(("strategy", "ranks", "accumulate", "clip"), MATRIX)
def test_a_padded_language_model_is_exact(strategy, ranks, accumulate, clip, references):
    check(language(), strategy, ranks, references[accumulate, clip], accumulate=accumulate, clip=clip)


@pytest.mark.parametrize(
    ("strategy", "weight"),
    [
        ("ddp", tokens),
        ("fsdp", None),
        pytest.param("ddp", None, marks=pytest.mark.soak),
        pytest.param("fsdp", tokens, marks=pytest.mark.soak),
    ],
)
def test_an_empty_shard_keeps_what_was_accumulated(strategy, weight):
    """A rank without a sample in the last step of an update handed in zeros for the steps before it too."""
    x, y = padded(0)
    task = language(train=(x[:10], y[:10] if weight else y[:10].clamp(min=0)), test=None, weight=weight)
    one, many = quick_fit(task, accumulate=3), quick_fit(task, strategy, ranks=3, accumulate=3)
    assert distance(one, many) <= 1e-5


def test_single_is_what_torch_makes_of_it():
    """One part per update: nothing is scaled, so the weights are bitwise those of a task without a weight."""
    plain = quick_fit(language(weight=lambda target: 1, train=padded(0), test=None))
    assert quick_fit(language(train=padded(0), test=None)).weights_sha256 == plain.weights_sha256


def test_accumulated_steps_are_one_larger_batch():
    assert distance(quick_fit(language(batch_size=12)), quick_fit(language(), accumulate=3)) <= 1e-6


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp",
        pytest.param("balanced_data_parallel", marks=pytest.mark.soak),
        "pipeline:chunks=4",
        pytest.param("parameter_server", marks=pytest.mark.soak),
    ],
)
def test_a_part_without_a_unit_adds_nothing(strategy):
    """The gradient of 0 / 0 is not a number, and nothing times zero makes it one: it must not reach the weights."""
    check(language(loss=over_clamped), strategy, 2)


@pytest.mark.parametrize(
    ("strategy", "ranks"), [("ddp", 2), pytest.param("locked", 2, marks=pytest.mark.soak), ("parameter_server", 2)]
)
def test_sparse_gradients(strategy, ranks):
    optimizer = partial(torch.optim.SGD, lr=0.5)
    check(language(model=partial(Language, sparse=True), optimizer=optimizer), strategy, ranks, accumulate=3)


WEIGHTS = torch.tensor([1.0, 9.0, 0.0, 0.2])


def class_weight(target: Tensor) -> Tensor:
    return WEIGHTS[target].sum()


@pytest.mark.parametrize(
    ("strategy", "ranks"), [("ddp", 3), ("pipeline", 2), pytest.param("locked", 2, marks=pytest.mark.soak)]
)
def test_weighted_classes(strategy, ranks):
    """A class of weight 0 makes shards whose units are all zero, though nothing is ignored."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(38, 5, generator=generator), torch.randint(0, 4, (38,), generator=generator)
    model = partial(nn.Sequential, nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = model()
    loss = nn.CrossEntropyLoss(weight=WEIGHTS)
    check(language(model=made, train=(x, y), test=(x, y), loss=loss, weight=class_weight), strategy, ranks)


class Boxes(torch.utils.data.Dataset):
    """Images with 0 to 3 boxes each; targets stay a list of dictionaries."""

    def __len__(self) -> int:
        return 19

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=generator), {"boxes": torch.randn(index % 4, 4, generator=generator)}


def listed(samples: list[Any]) -> tuple[Tensor, list[dict[str, Tensor]]]:
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


def box_loss(output: Tensor, target: list[dict[str, Tensor]]) -> Tensor:
    errors = [(row - boxes["boxes"]).abs().sum() for row, boxes in zip(output, target, strict=True)]
    return torch.stack(errors).sum() / sum(len(boxes["boxes"]) for boxes in target)


def count_boxes(target: list[dict[str, Tensor]]) -> int:
    return sum(len(boxes["boxes"]) for boxes in target)


@pytest.mark.parametrize(("strategy", "ranks"), [("balanced_data_parallel", 2), ("pipeline", 2)])
def test_boxes(strategy, ranks):
    made = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    task = language(
        model=made, train=Boxes(), test=Boxes(), collate=listed, loss=box_loss, weight=count_boxes, batch_size=5
    )
    check(task, strategy, ranks)


@pytest.mark.parametrize(
    "strategy",
    [
        "single",
        "ddp",
        pytest.param("pipeline", marks=pytest.mark.soak),
        pytest.param("locked", marks=pytest.mark.soak),
        pytest.param("parameter_server", marks=pytest.mark.soak),
    ],
)
def test_a_step_without_any_unit_ends_the_run(strategy):
    """As it does without a weight: torch's mean over nothing is not a number."""
    x, y = padded(0)
    task = language(train=(x, torch.full_like(y, -100)), test=None)
    with pytest.raises(RankFailed, match="step 1"):
        quick_fit(task, strategy, **({} if strategy == "single" else {"ranks": 2}))


@pytest.mark.parametrize(
    "strategy",
    [
        "hogwild",
        pytest.param("locked:mode=free", marks=pytest.mark.soak),
        pytest.param("parameter_server:mode=async", marks=pytest.mark.soak),
        "local_sgd",
    ],
)
def test_ranks_that_update_alone_use_the_mean_over_their_own_units(strategy):
    """With one rank, that is the mean over all; with several, padding alone moves nothing and ends nothing."""
    optimizer = partial(torch.optim.SGD, lr=0.5)
    task = language(loss=over_clamped, optimizer=optimizer)
    one = quick_fit(task, accumulate=2)
    assert distance(one, quick_fit(task, strategy, ranks=1, accumulate=2)) <= 1e-5
    many = quick_fit(task, strategy, ranks=2, accumulate=1)
    assert all(bool(value.isfinite().all()) for value in many.weights.values())


def test_a_resume_goes_on_with_the_same_means(tmp_path):
    task = language(epochs=2)
    whole = quick_fit(task, "ddp", ranks=2, accumulate=3)
    settings: dict[str, Any] = {"ranks": 2, "accumulate": 3, "run_dir": tmp_path, "checkpoint_every": 3}
    quick_fit(task, "ddp", max_steps=6, **settings)
    resumed = quick_fit(task, "ddp", resume=True, **settings)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.losses == whole.losses
    assert [epoch["loss"] for epoch in resumed.epochs] == pytest.approx([epoch["loss"] for epoch in whole.epochs])


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (lambda target: -1, r"must return one number.*found int -1"),
        (lambda target: -target.new_ones(()), r"must return one number.*found int -1"),
        (lambda target: "many", r"must return one number.*found str 'many'"),
        (lambda target: None, r"must return one number.*found NoneType None"),
        (lambda target: target != -100, r"must return one number.*found a tensor of shape \(2, 6\)"),
        (lambda target: float("nan"), r"must return one number.*found float nan"),
        (lambda target: target["labels"].sum(), r"task.weight failed on the targets of 2 samples: \w+"),
    ],
)
def test_a_weight_that_is_no_count_is_refused(weight: Callable[..., Any], message: str):
    with pytest.raises(mh.BadInput, match=message):
        quick_fit(language(weight=weight))


def test_a_weight_that_does_not_fit_the_loss_is_reported():
    run = quick_fit(language(weight=lambda target: target.numel()), "ddp", ranks=2, max_steps=2)
    assert not run.exact
    assert "is not the mean over the units that weight counts" in (run.exact_reason or "")
