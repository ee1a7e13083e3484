"""Small models, each with one thing that makes cutting hard, and an input for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def nested_sequential() -> nn.Module:
    features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True))
    return nn.Sequential(
        features, nn.Flatten(), nn.Sequential(nn.Linear(64, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    )


class SkipCnn(nn.Module):
    """Two skip connections that overlap, one of them from the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(2 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.a(x))
        b = F.relu(self.b(a)) + x
        c = F.relu(self.c(b)) + a + b
        return self.head(torch.flatten(c, 1))


class Block(nn.Module):
    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider)
        self.conv2, self.bn2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider)
        self.shortcut = nn.Identity() if width == wider else nn.Conv2d(width, wider, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.layers = nn.ModuleList([Block(4, 4), Block(4, 6), Block(6, 6)])
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.dropout(x.mean((2, 3))))


class TiedByModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(x))))


class TiedByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.body(self.embed(x))), self.embed.weight)


class Repeated(nn.Module):
    """The same layer applied three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.sin(self.layer(x))
        return x


class DictInput(nn.Module):
    """A nest in (one part an integer tensor used late), a nest out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(9, 6), nn.Embedding(4, 6)
        self.mix, self.out = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, input: dict[str, Any]) -> dict[str, Tensor]:
        words, (kind, scale) = input["words"], input["rest"]
        x = torch.relu(self.mix(self.words(words).mean(1) * scale[:, None]))
        return {"logits": self.out(x + self.kinds(kind)), "hidden": x}


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(9, 6), nn.LayerNorm(6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, (hidden, _) = self.lstm(self.norm(self.embed(x)))
        return self.head(out[:, -1] + hidden[-1])


class PackedLstm(nn.Module):
    """Padded text with lengths; between packing and padding there is a PackedSequence, which does not travel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(9, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, input: tuple[Tensor, Tensor]) -> Tensor:
        words, lengths = input
        packed = pack_padded_sequence(self.embed(words), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(out.sum(1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = 0.2

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        mask = torch.tril(torch.ones(length, length, device=x.device)) == 0
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        weights = F.dropout(weights, self.dropout, training=self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Transformer(nn.Module):
    """Written as people write them: sizes asserted, positions made on the fly, tied head."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.attention = nn.ModuleList(Attention(8, 2) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(layers))
        self.register_buffer("scale", torch.linspace(0.9, 1.1, 16)[:, None])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        _, length = x.size()
        assert length <= 16, "too long"
        y = self.embed(x) + self.position(torch.arange(length, device=x.device)) * self.scale[:length]
        for norm, attention in zip(self.norms, self.attention, strict=True):
            y = y + attention(norm(y))
        return self.head(y)


class TorchEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.embed, self.encoder, self.head = nn.Linear(4, 8), nn.TransformerEncoder(layer, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class Gate(nn.Module):
    """Branches on what is in a tensor: can only be taken whole."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.high(x)
        return self.low(x)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.gate, self.after = nn.Linear(6, 6), Gate(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.gate(self.before(x)))


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 0.5


class StraightThrough(nn.Module):
    """A gradient of its own, and a frozen part under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = torch.tanh(self.frozen(x))
        return self.b(Sign.apply(self.a(x)))


class Writes(nn.Module):
    """Writes into its values, a fresh tensor among them; has a parameter nobody uses and draws noise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = a.mul(2).add_(1)
        state = torch.zeros(x.size(0), 6)
        state[:, :3] = b[:, :3]
        state.add_(b)
        return self.b(state + 0.1 * torch.randn(6)).relu_()


def images(channels: int = 1) -> Tensor:
    return torch.randn(5, channels, 8 if channels == 1 else 6, 8 if channels == 1 else 6)


def words() -> Tensor:
    return torch.randint(0, 9, (5, 7))


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "mlp": (mlp, lambda: torch.randn(5, 6)),
    "nested_sequential": (nested_sequential, images),
    "skip_cnn": (SkipCnn, lambda: images(2)),
    "resnet": (ResNet, images),
    "tied_by_module": (TiedByModule, words),
    "tied_by_hand": (TiedByHand, words),
    "repeated": (Repeated, lambda: torch.randn(5, 6)),
    "dict_input": (
        DictInput,
        lambda: {"words": words(), "rest": (torch.randint(0, 4, (5,)), torch.rand(5))},
    ),
    "lstm": (Lstm, words),
    "packed_lstm": (PackedLstm, lambda: (words(), torch.tensor([7, 2, 5, 3, 7]))),
    "transformer": (Transformer, words),
    "torch_encoder": (TorchEncoder, lambda: torch.randn(5, 3, 4)),
    "gated": (Gated, lambda: torch.randn(5, 6)),
    "straight_through": (StraightThrough, lambda: torch.randn(5, 6)),
    "writes": (Writes, lambda: torch.randn(5, 6)),
}


def make(name: str) -> tuple[nn.Module, Any]:
    model, example = ZOO[name]
    torch.manual_seed(3)
    return model(), example()
