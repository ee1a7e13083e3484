"""Models of text: an LSTM over sentences of any length, a character LSTM and a GPT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class EmbedWords(nn.Module):
    """Word numbers to vectors; the lengths travel along. A share of all words is left out while training."""

    def __init__(self, words: int, width: int, word_dropout: float):
        super().__init__()
        self.table = nn.Embedding(words, width, padding_idx=0)
        nn.init.normal_(self.table.weight, std=0.1)
        self.drop = nn.Dropout1d(word_dropout)

    def forward(self, sentences: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.drop(self.table(sentences["words"])), sentences["lengths"]


class ReadSentence(nn.Module):
    """A two-way LSTM over packed sentences, and the largest value each of its units took over a sentence.

    Packing sorts sentences by length and runs each only as far as it goes; the order is put back before returning.
    """

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)

    def forward(self, sentences: tuple[Tensor, Tensor]) -> Tensor:
        vectors, lengths = sentences
        packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, padding_value=-1.0)
        return states.amax(1)  # a state lies in -1..1, so padding never wins


def sentence_lstm(
    words: int, classes: int = 2, width: int = 64, hidden: int = 64, dropout: float = 0.5, word_dropout: float = 0.2
) -> nn.Sequential:
    """Input: {"words": samples x longest, "lengths": samples}."""
    return nn.Sequential(
        EmbedWords(words, width, word_dropout),
        ReadSentence(width, hidden),
        nn.Dropout(dropout),
        nn.Linear(2 * hidden, classes),
    )


class Recurrent(nn.Module):
    """An LSTM as a link of a chain: a sequence of vectors in, the sequence of its states out."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.lstm(vectors)[0]


def character_lstm(symbols: int, width: int = 64, hidden: int = 256, layers: int = 1) -> nn.Sequential:
    """Symbols (samples x length) to scores of the next symbol at every place (samples x length x symbols)."""
    inputs = [width] + [hidden] * (layers - 1)
    return nn.Sequential(
        nn.Embedding(symbols, width),
        *(Recurrent(size, hidden) for size in inputs),
        nn.Linear(hidden, symbols),
    )


class EmbedPlaces(nn.Module):
    """Symbols and their places to vectors."""

    def __init__(self, symbols: int, longest: int, width: int):
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Parameter(torch.zeros(longest, width))

    def forward(self, sequence: Tensor) -> Tensor:
        return self.symbols(sequence) + self.places[: sequence.shape[1]]


class Attention(nn.Module):
    """Every place looks at itself and those before it.

    Keys have no bias: it moves all scores of a place alike, which softmax does not see. What came back for it would be
    rounding, of which Adam makes steps as long as any other, and no two strategies would train the same weights.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ask = nn.Linear(width, 2 * width)  # queries and values
        self.keys = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(width, width)

    def forward(self, vectors: Tensor) -> Tensor:
        both = self.ask(vectors).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 2, samples, heads, ...
        keys = self.keys(vectors).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        seen = F.scaled_dot_product_attention(both[0], keys, both[1], is_causal=True)
        return self.join(seen.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention, then a small network at each place; both added to what comes in."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(width), Attention(width, heads), nn.Dropout(dropout))
        self.think = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, vectors: Tensor) -> Tensor:
        vectors = vectors + self.attend(vectors)
        return vectors + self.think(vectors)


def gpt(
    symbols: int,
    longest: int,
    width: int = 128,
    heads: int = 4,
    layers: int = 4,
    dropout: float = 0.0,
    tied: bool = False,
) -> nn.Sequential:
    """Symbols (samples x length) to scores of the next symbol at every place (samples x length x symbols).

    Weights start as those of GPT-2 did. With `tied`, as there, a symbol's score is the product with its own embedding.
    """
    model = nn.Sequential(
        EmbedPlaces(symbols, longest, width),
        *(TransformerBlock(width, heads, dropout) for _ in range(layers)),
        nn.LayerNorm(width),
        nn.Linear(width, symbols, bias=not tied),
    )
    _start(model, layers)
    if tied:
        model[-1].weight = model[0].symbols.weight  # type: ignore[assignment, union-attr]
    return model


@torch.no_grad()
def _start(model: nn.Module, layers: int, std: float = 0.02) -> None:
    """Small random weights; smaller where a block adds to what comes in, so that the sum of all blocks is not larger."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, EmbedPlaces):
            nn.init.normal_(module.symbols.weight, std=std)
            nn.init.normal_(module.places, std=std)
    for module in model.modules():
        if isinstance(module, TransformerBlock):
            for last in (module.attend[1].join, module.think[3]):
                last.weight.mul_((2 * layers) ** -0.5)  # type: ignore[operator, union-attr]
