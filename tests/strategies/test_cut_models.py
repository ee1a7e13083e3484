"""Models nobody here prepared: under strategies that cut models or split batches they train as under `single`, or are
refused before the start with the true reason."""

from __future__ import annotations

import random
from collections import UserDict
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import manyhands as mh
from tests.conftest import distance, quick_fit

SAMPLES, FEATURES, CLASSES, BATCH = 46, 16, 5, 8  # the last batch is short
CUT = ("model_parallel", "pipeline", "hybrid:replicas=2,stages=2,chunks=2")
THREADS = ("data_parallel", "balanced_data_parallel")


def numbers() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(SAMPLES, FEATURES, generator=generator),
        torch.randint(0, CLASSES, (SAMPLES,), generator=generator),
    )


def tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randint(0, 11, (SAMPLES, 6), generator=generator),
        torch.randint(0, CLASSES, (SAMPLES,), generator=generator),
    )


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 2, 8, 8, generator=torch.Generator().manual_seed(3)), numbers()[1]


def task_of(model: Any, train: Any = None, **changes: Any) -> mh.Task:
    recipe: dict[str, Any] = {
        "loss": F.cross_entropy,
        "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "batch_size": BATCH,
    }
    return mh.Task(model=model, train=train or numbers(), **{**recipe, **changes})


def check(task: mh.Task, *strategies: str) -> None:
    one = quick_fit(task)
    for strategy in strategies:
        many = quick_fit(task, strategy, **({} if "hybrid" in strategy else {"ranks": 2}))
        assert distance(one, many) <= 2e-6, strategy


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.b(torch.tanh(self.a(x)))


class Experts(nn.Module):
    """Mixtral: tokens sorted to their expert by index, and put back by a write into a fresh tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.gate = nn.Linear(FEATURES, 12), nn.Linear(12, 3)
        self.experts = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.front(x))
        weight, chosen = self.gate(hidden).softmax(1).max(1)
        order = torch.argsort(chosen)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.shape[0])
        mixed = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            mixed += expert(hidden[order]) * (chosen[order] == number)[:, None]
        return self.head(mixed[inverse] * weight[:, None])


class EncoderDecoder(nn.Module):
    """T5: one embedding for the encoder, the decoder and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.shared.weight
        self.classes = nn.Linear(11, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        memory = self.encoder(self.shared(words))
        decoded = self.decoder(self.shared(words.flip(1)), memory)
        return self.classes(torch.tanh(self.head(decoded)).mean(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.middle = nn.Conv2d(6, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.out, self.head = nn.Conv2d(8, 2, 1), nn.Linear(2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.down1(x))
        second = F.relu(self.down2(F.max_pool2d(first, 2)))
        joined = torch.cat([first, self.up(F.relu(self.middle(second)))], 1)
        return self.head(self.out(joined).mean((2, 3)))


class Spectral(nn.Module):
    """Complex layers: gradients of their weights need conjugates, and a conjugate view crosses the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(9, 12, dtype=torch.cfloat)
        self.b = nn.Conv1d(1, 2, 3, padding=1, dtype=torch.cfloat)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.a(torch.fft.rfft(x)).conj()
        return self.head(self.b(turned[:, None]).flatten(1).abs())


class Branches(nn.Module):
    """A choice per sample, a layer used twice and frozen parts at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.again = nn.Linear(FEATURES, 8).requires_grad_(False), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, CLASSES)
        self.head.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.again(self.front(x)) * self.scale
        hidden = torch.where(hidden > 0, hidden, 0.1 * self.again(hidden))
        return self.head(hidden * self.scale)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = (
            nn.Embedding(11, 8),
            nn.LSTM(8, 8, 2, batch_first=True),
            nn.Linear(8, CLASSES),
        )

    def forward(self, words: Tensor) -> Tensor:
        _, (last, _) = self.lstm(self.embed(words))
        return self.head(last[-1])


class Checkpointed(Net):
    """Activations made again in the backward pass, by both of torch's ways."""

    def forward(self, x: Tensor) -> Any:
        hidden = checkpoint(lambda v: torch.tanh(self.a(v)), x.clone().requires_grad_(), use_reentrant=True)
        return checkpoint(self.b, hidden, use_reentrant=False)


KINDS = {
    "experts": (Experts, numbers),
    "encoder_decoder": (EncoderDecoder, tokens),
    "unet": (UNet, images),
    "spectral": (Spectral, numbers),
    "branches": (Branches, numbers),
    "lstm": (Recurrent, tokens),
    "checkpointed": (Checkpointed, numbers),
}


@pytest.mark.parametrize("kind", KINDS)
def test_they_train_as_under_single(kind: str) -> None:
    model, data = KINDS[kind]
    check(task_of(model, data()), *CUT, "data_parallel")


# ---------------------------------------------------------------- nests keep their types


class Labelled(UserDict[str, Tensor]):
    """A mapping that is no dict, as tokenizers give."""


class Mapped(Net):
    def forward(self, x: Any) -> Any:
        assert isinstance(x, Labelled)
        return super().forward(x["values"]) + self.b.bias * x["inner"]["scale"].mean(1, keepdim=True)


def labelled(samples: list[Any]) -> Any:
    values = torch.stack([value for value, _ in samples])
    return Labelled(values=values, inner={"scale": values[:, :2]}), torch.stack([label for _, label in samples])


def test_a_mapping_of_ones_own_arrives_as_such() -> None:
    check(task_of(Mapped, TensorDataset(*numbers()), collate=labelled), *CUT, *THREADS)


@dataclass
class Result:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    extra: None = None


class Typed(Net):
    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.a(x))
        return Result(self.b(hidden), (hidden,))


def of_result(output: Result, target: Tensor) -> Tensor:
    assert type(output) is Result
    return F.cross_entropy(output.logits, target) + output.hidden[0].pow(2).mean()


def test_a_dataclass_comes_back_as_such() -> None:
    """It became a dictionary between replicas and at the end of a cut model."""
    check(task_of(Typed, loss=of_result), *CUT, *THREADS)


class Box:
    def __init__(self, logits: Tensor):
        self.logits = logits


class Boxed(Net):
    def forward(self, x: Tensor) -> Any:
        return Box(super().forward(x))


@pytest.mark.parametrize("strategy", ["model_parallel", "pipeline", *THREADS])
def test_tensors_in_an_object_of_ones_own_are_refused_by_its_type(strategy: str) -> None:
    """Gradients ended where nobody could look inside."""
    task = task_of(Boxed, loss=lambda output, target: F.cross_entropy(output.logits, target))
    with pytest.raises(mh.Refused, match=r"Box\b"):
        quick_fit(task, strategy, ranks=2)


# ---------------------------------------------------------------- what counts samples


class Boxes(NamedTuple):
    places: Tensor


def boxed(samples: list[Any]) -> Any:
    return torch.stack([value for value, _ in samples]), [{"box": Boxes(label.repeat(3, 2))} for _, label in samples]


def of_boxes(output: Tensor, targets: list[Any]) -> Tensor:
    assert len(output) == len(targets)
    parts = [
        F.cross_entropy(row[None], target["box"].places[:1, 0]) for row, target in zip(output, targets, strict=True)
    ]
    return torch.stack(parts).mean()


def test_a_list_of_targets_is_split_by_entry() -> None:
    """One dictionary per sample was cut inside, tensor by tensor, and samples got the losses of others."""
    check(task_of(Net, TensorDataset(*numbers()), collate=boxed, loss=of_boxes), *CUT, *THREADS)


class Pictures(nn.Module):
    """Takes a tuple of pictures, one per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, CLASSES)

    def forward(self, pictures: Any) -> Tensor:
        return self.head(torch.stack([self.conv(picture).mean((1, 2)) for picture in pictures]))


def pictures(samples: list[Any]) -> Any:
    return tuple(value.reshape(1, 4, 4).repeat(3, 1, 1) for value, _ in samples), torch.stack([y for _, y in samples])


def test_pictures_of_three_channels_are_not_three_samples() -> None:
    """In a batch of three, every tensor has three rows: only another batch tells entries from rows."""
    task = task_of(Pictures, TensorDataset(*(t[:27] for t in numbers())), collate=pictures)
    check(task, *THREADS)
    with pytest.raises(mh.Refused, match=r"pipeline cuts models whose input holds the same number of tensors"):
        quick_fit(task, "pipeline", ranks=2)


def test_what_counts_no_samples_is_refused_with_its_shape() -> None:
    def turned(samples: list[Any]) -> Any:
        return torch.stack([value for value, _ in samples]), torch.stack([y.repeat(7) for _, y in samples], 1)

    task = task_of(Net, TensorDataset(*numbers()), collate=turned, loss=lambda o, t: F.cross_entropy(o, t[0]))
    for strategy in ("pipeline", "data_parallel"):
        with pytest.raises(mh.Refused, match=r"found in the targets: a tensor of shape \(7, 3\) for 3 samples"):
            quick_fit(task, strategy, ranks=2)
    check(task, "model_parallel")  # which splits nothing


# ---------------------------------------------------------------- what a forward leaves behind


class Teacher(nn.Module):
    """BYOL: the teacher follows the student in every forward, and begins as its copy."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(FEATURES, 8), nn.Linear(FEATURES, 8).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.student.weight, 0.1)
        self.teacher.bias.data.copy_(self.student.bias.data)
        return self.head(torch.tanh(self.student(x)) + self.teacher(x))


def test_parameters_written_in_forward() -> None:
    """The stage that wrote them and the one that used them held different copies."""
    check(task_of(Teacher), "model_parallel", "pipeline:chunks=1")
    with pytest.raises(
        mh.Refused, match=r'writes the parameter "teacher.bias" each time; use model_parallel, or chunks=1'
    ):
        quick_fit(task_of(Teacher), "pipeline", ranks=2)


class Counts(Net):
    def forward(self, x: Tensor) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) * (1 + self.calls)


class Remembers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.before: Any = None

    def forward(self, x: Tensor) -> Any:
        hidden = self.a(x)
        seen = hidden if self.before is None else hidden + self.before
        self.before = hidden.detach().mean(0)
        return self.b(seen)


class Replaces(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, x: Tensor) -> Any:
        hidden = self.a(x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return self.b(hidden - self.mean)


class Inside(nn.Module):
    """The same in a module of its own."""

    def __init__(self, model: type[Net]) -> None:
        super().__init__()
        self.front, self.inner = nn.Linear(FEATURES, FEATURES), model()

    def forward(self, x: Tensor) -> Any:
        return self.inner(torch.tanh(self.front(x)))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Counts, 'Counts: its forward keeps state in the attribute "calls"'),
        (Remembers, 'Remembers: its forward keeps state in the attribute "before"'),
        (Replaces, 'Replaces: its forward replaces its buffer "mean" by another tensor; write into it'),
    ],
)
def test_state_between_calls(model: type[Net], reason: str) -> None:
    """It was baked into the stages as the example left it, or the refusal spoke of the number of samples."""
    with pytest.raises(mh.Refused, match=reason):
        quick_fit(task_of(model), "model_parallel", ranks=2)
    check(task_of(partial(Inside, model)), "model_parallel")  # whole on one stage it keeps what it likes


class Steps(Net):
    """The learning rate's neighbour in many recipes: a buffer that counts, written with `+=`."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        self.steps += 1
        self.steps *= 1.5
        return super().forward(x) / self.steps


def test_a_buffer_that_counts_is_written_by_its_stage() -> None:
    """`+=` became a sum that nobody kept, and the refusal said that the buffer was no tensor."""
    check(task_of(Steps), "model_parallel", "hybrid:replicas=1,stages=2")


class Keeps(Net):
    def forward(self, x: Tensor) -> Any:
        self.last = self.a(x)  # for pictures; nobody reads it
        return self.b(torch.tanh(self.last))


def test_what_is_only_kept_for_others_to_look_at_is_no_state() -> None:
    check(task_of(Keeps), "model_parallel")


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.front(x)
        return self.head(hidden if random.random() < 0.5 else torch.tanh(hidden))


def test_a_branch_on_pythons_random_is_not_baked_in() -> None:
    with pytest.raises(mh.Refused, match=r"Skips: its forward draws numbers that are no tensors \(random"):
        quick_fit(task_of(Skips), "model_parallel", ranks=2)


class Hooked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight.register_hook(lambda gradient: gradient * 0.5)


def test_hooks_on_parameters_see_gradients_that_come_late() -> None:
    """Weight gradients that a pipeline makes by itself went past them."""
    check(task_of(Hooked), "pipeline")


def parametrised() -> nn.Module:
    model = Net()
    weight_norm(model.a)
    return model


def test_a_model_that_cannot_be_pickled_is_tried_all_the_same() -> None:
    check(task_of(parametrised), *THREADS)


# ---------------------------------------------------------------- optimizers


class Marked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight.fast = True  # type: ignore[assignment]


def by_name_and_mark(named: Any) -> torch.optim.Optimizer:
    """Groups by name, one of which no stage but the last has anything of, and by an attribute of the parameter."""
    found = dict(named)
    fast = [(name, p) for name, p in found.items() if getattr(p, "fast", False)]
    rest = [(name, p) for name, p in found.items() if not hasattr(p, "fast") and name != "b.bias"]
    groups = [{"params": [("b.bias", found["b.bias"])], "lr": 0.5}, {"params": fast, "lr": 0.3}, {"params": rest}]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def test_groups_by_name_and_by_attribute() -> None:
    """torch refuses groups that are empty, and the factory names that are elsewhere."""
    check(task_of(Marked, optimizer=by_name_and_mark), *CUT, "parameter_server:servers=2")
