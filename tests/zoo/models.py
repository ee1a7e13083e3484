"""Small models of the kinds people bring: each trains equal to `single`, says why it does not, or is refused.

A case names what is special about it, and `why`: the words of the reason where a strategy that gives each rank a part of the
batch cannot be exact. None: it must be. `chunks` is the same for strategies that pass a batch in chunks, where it differs.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

import manyhands as mh

SAMPLES, WIDTH, CLASSES = 64, 16, 5


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


VECTORS = draw(SAMPLES, WIDTH)
LABELS = torch.randint(0, CLASSES, (SAMPLES,), generator=torch.Generator().manual_seed(1))
IMAGES = draw(SAMPLES, 3, 8, 8)
TOKENS = torch.randint(1, 20, (SAMPLES, 7), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.randint(2, 8, (SAMPLES,), generator=torch.Generator().manual_seed(3))
PADDED = TOKENS.masked_fill(torch.arange(7)[None, :] >= LENGTHS[:, None], -100)
SGD = partial(torch.optim.SGD, lr=0.1)


@dataclass
class Case:
    """A model with the task around it."""

    model: Any
    why: str | None = None
    chunks: str | None = None
    train: Any = (VECTORS, LABELS)
    loss: Callable[..., Tensor] = F.cross_entropy
    optimizer: Any = SGD
    extra: dict[str, Any] = field(default_factory=dict)

    def task(self) -> mh.Task:
        return mh.Task(
            model=self.model, train=self.train, loss=self.loss, optimizer=self.optimizer, batch_size=8, **self.extra
        )


ZOO: dict[str, Case] = {}


def case(name: str, **rest: Any) -> Callable[[Any], Any]:
    def add(model: Any) -> Any:
        ZOO[name] = Case(model, **rest)
        return model

    return add


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.b(torch.tanh(self.a(x)))


ZOO["plain"] = Case(Net)
ZOO["an instance instead of a factory"] = Case(Net())
RANDOM, MEAN, MIXED, STATE = (
    "random numbers",
    "not the mean over its samples",
    "depends on the other samples",
    "later batches",
)

# ---------------------------------------------------------------- random numbers


@case("dropout as a function", why=RANDOM)
class FunctionalDropout(Net):
    def forward(self, x: Tensor) -> Any:
        return self.b(F.dropout(torch.tanh(self.a(x)), 0.2, self.training))


@case("attention dropout", why=RANDOM)
class AttentionDropout(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.a(x).view(len(x), 4, 8)
        return self.b(F.scaled_dot_product_attention(h, h, h, dropout_p=0.3 if self.training else 0.0).flatten(1))


@case("drop path", why=RANDOM)
class DropPath(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        keep = torch.empty(len(x), 1).bernoulli_(0.8) if self.training else 1.0
        return self.b(h + torch.tanh(h) * keep)


class LayerDrop(nn.Module):
    chance = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            if self.training and torch.rand([]) < self.chance:
                continue
            x = torch.tanh(layer(x))
        return self.out(x)


ZOO["layers dropped at random"] = Case(LayerDrop, why=RANDOM)


@case("layers dropped with probability 0")
class NoLayerDrop(LayerDrop):
    chance = 0.0


@case("python's random", why=RANDOM)
class PythonRandom(LayerDrop):
    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            if random.random() < 0.5:
                x = torch.tanh(layer(x))
        return self.out(x)


@case("numpy's random", why=RANDOM)
class NumpyRandom(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * float(np.random.uniform(0.5, 1.5))


@case(
    "a variational autoencoder",
    why=RANDOM,
    train=(VECTORS, VECTORS),
    loss=lambda o, t: F.mse_loss(o[0], t) + o[1].pow(2).mean(),
)
class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 8), nn.Linear(4, WIDTH)

    def forward(self, x: Tensor) -> Any:
        mean, spread = self.encode(x).chunk(2, -1)
        return self.decode(mean + torch.randn_like(mean) * spread.exp()), mean


# ---------------------------------------------------------------- losses

ZOO["class weights"] = Case(Net, loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9, 1, 1, 0.1])))
ZOO["a sum"] = Case(
    Net, why=MEAN, loss=partial(F.cross_entropy, reduction="sum"), optimizer=partial(torch.optim.SGD, lr=0.01)
)
ZOO["contrastive"] = Case(
    Net, why=MEAN, train=(VECTORS, VECTORS), loss=lambda o, t: F.cross_entropy(o @ o.T, torch.arange(len(o)))
)
ZOO["a mean over elements"] = Case(Net, train=(VECTORS, F.one_hot(LABELS, CLASSES).float()), loss=F.mse_loss)
ZOO["batchmean"] = Case(
    Net, train=(VECTORS, F.one_hot(LABELS, CLASSES).float()),
    loss=lambda o, t: F.kl_div(F.log_softmax(o, -1), t, reduction="batchmean"),
)  # fmt: skip


class Words(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, 20)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Any:
        return self.out(self.mix(self.embed(tokens))[0]).transpose(1, 2)


ZOO["tied embeddings"] = Case(Words, train=(TOKENS, TOKENS.roll(1, 1)))
ZOO["padded tokens"] = Case(Words, train=(TOKENS, PADDED))


@case("a loss that looks at the weights", loss=lambda o, t: F.cross_entropy(o[0], t) + 0.1 * o[1])
class Regularised(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), self.a.weight.pow(2).sum()


# ---------------------------------------------------------------- neighbours in the batch


@case("batch statistics of one's own", why=MIXED)
class Centred(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        return self.b(torch.tanh(h - h.mean(0)))


@case("mixup in the forward pass", why=MIXED)
class Mixup(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(0.7 * x + 0.3 * x.flip(0))


@case("experts with a balancing loss", why=MEAN, loss=lambda o, t: F.cross_entropy(o[0], t) + o[1])
class Balanced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList([nn.Linear(WIDTH, CLASSES) for _ in range(3)])

    def forward(self, x: Tensor) -> Any:
        share = self.gate(x).softmax(-1)
        return sum(expert(x) * share[:, i : i + 1] for i, expert in enumerate(self.experts)), share.mean(0).pow(2).sum()


@case("a branch on the batch's mean", why=MIXED)
class Branch(Net):
    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.a(x))
        return self.b(h) if x[:, 0].mean() > 0 else self.b(-2 * h)


@case("BatchNorm", why="BatchNorm", train=(IMAGES, LABELS))
class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x).mean((2, 3)))


@case("GroupNorm", train=(IMAGES, LABELS))
class Grouped(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.body[1] = nn.GroupNorm(2, 8)


@case("InstanceNorm that tracks", why=STATE, train=(IMAGES, LABELS))
class Tracked(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.body[1] = nn.InstanceNorm2d(8, track_running_stats=True)


# ---------------------------------------------------------------- state between batches


@case("a buffer of batch statistics", why=f"{STATE}|{MIXED}")
class Running(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
        return super().forward(x - self.mean)


@case("a buffer that counts", chunks=STATE)
class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return super().forward(x) / (1 + self.calls)


@case("an attribute that counts", chunks=STATE)
class Attribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return super().forward(x) / (1 + self.calls)


@case("an attribute that remembers the batch", why=STATE)
class Remembering(Net):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(WIDTH)

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x + self.last)
        self.last = x.detach().mean(0)
        return out


@case("a cache that changes nothing")
class Cached(Net):
    def forward(self, x: Tensor) -> Any:
        self.seen = super().forward(x)
        return self.seen


@case("a teacher that follows", chunks=STATE)
class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES).requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.student.weight, 0.1)
        return self.student(x) + self.teacher(x)


@case("a teacher that begins as its student", chunks=STATE)
class Twin(Teacher):
    def __init__(self) -> None:
        super().__init__()
        self.teacher.load_state_dict(self.student.state_dict())


@case("a history that is read when it is long enough", why=STATE)
class History(Net):
    def __init__(self) -> None:
        super().__init__()
        self.past: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        self.past = [*self.past, x.detach().mean(0)][-3:]
        return super().forward(x + self.past[0] if len(self.past) == 3 else x)


@case("spectral norm", chunks=STATE)
class Spectral(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a = spectral_norm(self.a)


@case("the older spectral norm", chunks=STATE)
class OldSpectral(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.spectral_norm(self.a)


# ---------------------------------------------------------------- parameters with something about them


@case("weight norm")
class WeightNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a = weight_norm(self.a)


@case("a hook that masks a gradient")
class Masked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight.register_hook(lambda gradient: gradient * (torch.arange(32) % 2)[:, None])


@case("a hook that clamps a gradient", why="gradient of a batch")
class Clamped(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight.register_hook(lambda gradient: gradient.clamp(-0.001, 0.001))


def by_attribute(named: Any) -> torch.optim.Optimizer:
    named = list(named)
    fast = [p for _, p in named if getattr(p, "fast", False)]
    slow = [p for _, p in named if not getattr(p, "fast", False)]
    return torch.optim.SGD([{"params": fast, "lr": 0.5}, {"params": slow}], lr=0.05)


@case("groups by an attribute", optimizer=by_attribute)
class Marked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight.fast = True  # type: ignore[attr-defined]


def by_name(named: Any) -> torch.optim.Optimizer:
    named = list(named)
    last = [pair for pair in named if pair[0].startswith("b.")]
    first = [pair for pair in named if not pair[0].startswith("b.")]
    return torch.optim.AdamW([{"params": last, "lr": 0.05}, {"params": first, "weight_decay": 0.3}], lr=0.01)


ZOO["groups by name"] = Case(Net, optimizer=by_name)
ZOO["Rprop"] = Case(Net, optimizer=partial(torch.optim.Rprop, lr=0.01))
ZOO["Adafactor"] = Case(Net, optimizer=partial(torch.optim.Adafactor, lr=0.01))


@case("a single number", optimizer=partial(torch.optim.Adam, lr=0.01))
class Scaled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * self.scale


@case("complex layers")
class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(9, 16, dtype=torch.cfloat), nn.Linear(16, 16, dtype=torch.cfloat)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.b(self.a(torch.fft.rfft(x))).abs())


@case("frozen layers and one that is not used", optimizer=partial(torch.optim.AdamW, lr=0.01))
class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.requires_grad_(False)
        self.spare = nn.Linear(3, 3)


ZOO["double precision"] = Case(lambda: Net().double(), train=(VECTORS.double(), LABELS))

# ---------------------------------------------------------------- ways through a model


@case("routed experts", optimizer=partial(torch.optim.Adam, lr=0.01))
class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, 32)
        self.experts = nn.ModuleList([nn.Linear(32, CLASSES) for _ in range(4)])

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.a(x))
        chosen = (x[:, 0] > 0).long() + (x[:, 1] > 0).long() + (x[:, 2] > 1.5).long()
        out = torch.zeros(len(x), CLASSES)
        for number, expert in enumerate(self.experts):
            if (chosen == number).any():
                out[chosen == number] = expert(h[chosen == number])
        return out


@case("sorted and put back")
class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        order = torch.argsort(h[:, 0])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return self.b(h[order])[back]


@case("skip connections", train=(IMAGES, LABELS))
class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Linear(11, CLASSES)

    def forward(self, x: Tensor) -> Any:
        small = F.relu(self.down(x))
        large = self.up(F.relu(self.low(small)) + small)
        return self.head(torch.cat([large, x], 1).mean((2, 3)))


@case("recomputed layers")
class Recomputed(Net):
    reentrant = False

    def forward(self, x: Tensor) -> Any:
        return self.b(torch.tanh(checkpoint(self.a, x, use_reentrant=self.reentrant)))


@case("recomputed layers, reentrant")
class Reentrant(Recomputed):
    reentrant = True

    def forward(self, x: Tensor) -> Any:
        return super().forward(x.requires_grad_())


ZOO["a transformer"] = Case(
    lambda: nn.Sequential(
        nn.Embedding(20, WIDTH), nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True),
        nn.Flatten(), nn.Linear(7 * WIDTH, CLASSES),
    ),
    train=(TOKENS, LABELS),
)  # fmt: skip


@case("scripted")
def scripted() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.script(nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES)))


ZOO["sparse gradients"] = Case(
    lambda: nn.Sequential(nn.EmbeddingBag(20, WIDTH, sparse=True), nn.Linear(WIDTH, CLASSES)), train=(TOKENS, LABELS)
)

# ---------------------------------------------------------------- what goes in and comes out


class Wrapped:
    def __init__(self, scores: Tensor):
        self.scores = scores


@case("an output of its own kind", loss=lambda o, t: F.cross_entropy(o.scores, t))
class Opaque(Net):
    def forward(self, x: Tensor) -> Any:
        return Wrapped(super().forward(x))


@case("a distribution as output", loss=lambda o, t: -o.log_prob(t).mean())
class Distribution(Net):
    def forward(self, x: Tensor) -> Any:
        return torch.distributions.Categorical(logits=super().forward(x))


@dataclass
class Scores:
    scores: Tensor
    hidden: Tensor | None = None


@case("a dataclass as output", loss=lambda o, t: F.cross_entropy(o.scores, t))
class Structured(Net):
    def forward(self, x: Tensor) -> Any:
        return Scores(super().forward(x))


@case(
    "dictionaries in and out",
    train=({"x": VECTORS, "more": {"y": VECTORS.flip(1)}}, {"label": LABELS}),
    loss=lambda o, t: F.cross_entropy(o["scores"], t["label"]),
)
class Dictionaries(Net):
    def forward(self, given: Any) -> Any:
        return {"scores": super().forward(given["x"] + given["more"]["y"])}


def boxes(samples: list[Any]) -> Any:
    return torch.stack([vector for vector, _ in samples]), [{"label": label.reshape(1)} for _, label in samples]


ZOO["a list of targets, one per sample"] = Case(
    Net,
    train=torch.utils.data.TensorDataset(VECTORS, LABELS),
    loss=lambda o, t: torch.stack([F.cross_entropy(a[None], b["label"]) for a, b in zip(o, t, strict=True)]).mean(),
    extra={"collate": boxes},
)

# ---------------------------------------------------------------- what the first batch does not show

ORDINARY = LABELS.clamp(max=CLASSES - 2)
RARE = torch.where(torch.arange(SAMPLES) % 9 == 4, CLASSES - 1, ORDINARY)
ZOO["a target that is ignored, now and then"] = Case(
    Net, train=(VECTORS, RARE), loss=nn.CrossEntropyLoss(ignore_index=CLASSES - 1, label_smoothing=0.1)
)
ZOO["a target of a dataset that is ignored, now and then"] = Case(
    Net, train=torch.utils.data.TensorDataset(VECTORS, RARE), loss=nn.CrossEntropyLoss(ignore_index=4),
    extra={"collate": torch.utils.data.default_collate},
)  # fmt: skip
ZOO["a rare class with a weight of its own"] = Case(
    Net, train=(VECTORS, RARE), loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1, 1, 1, 9]))
)


@case("hidden state with a row for each sample of a batch", why=STATE, train=(draw(SAMPLES, 6, WIDTH), LABELS))
class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.GRU(WIDTH, 8, batch_first=True), nn.Linear(8, CLASSES)
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        out, hidden = self.mix(x, self.hidden)
        self.hidden = hidden.detach()
        return self.out(out[:, -1])


@case("a constant made in the forward pass")
class Constant(Net):
    def forward(self, x: Tensor) -> Any:
        return self.b(torch.tanh(self.a(x)) * torch.tensor(2.0))


@case("computed in 16 bits inside", why="bfloat16")
class Coarse(Net):
    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


ZOO["parameters of 16 bits"] = Case(
    lambda: Net().bfloat16(), why="bfloat16", train=(VECTORS.bfloat16(), LABELS),
    loss=lambda o, t: F.cross_entropy(o.float(), t),
)  # fmt: skip


@case("a hook where a gradient is wanted")
class Hooked(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * 0.3)
        return self.b(torch.tanh(h))


@case("the older weight norm")
class OldWeightNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings(action="ignore"):
            self.a = nn.utils.weight_norm(self.a)


@case("an average that could be trained, written by the forward pass", chunks=STATE)
class Averaging(Teacher):
    def __init__(self) -> None:
        super().__init__()
        self.teacher.requires_grad_(True)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.student.weight, 0.1)
        return self.student(x)


@case("an input that is written")
class Writing(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.mul_(0.5))


@case("sparse inputs", train=(VECTORS.relu().to_sparse(), LABELS))
class SparseInput(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.to_dense() if x.is_sparse else x)


@case("a sparse tensor on the way")
class SparseInside(Net):
    def forward(self, x: Tensor) -> Any:
        h = torch.sparse.mm(x.to_sparse(), self.a.weight.t()) + self.a.bias
        return self.b(torch.tanh(h))


@case("a hook that holds the model")
class HookHolds(Net):
    def __init__(self) -> None:
        super().__init__()
        self.a.register_forward_hook(lambda module, args, output: output + self.b.weight.mean(0))
