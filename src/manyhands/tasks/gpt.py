"""A GPT of GPT-2's shape: on a text of your own, byte by byte, or on random tokens, which show speed and memory alone.

A sample is `sequence` tokens, its target the same tokens one place on; the loss is the mean over tokens. The last tenth is
for testing. The recipe: AdamW, weight decay on matrices alone, warm-up and a cosine; give `--clip 1` with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import BadInput
from ..schedules import cosine
from ..task import Task
from . import positive
from .models import gpt
from .models.next_symbol import next_symbol_loss, write_on

BYTES = 256
TOKENS = 1_048_576


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    sequence: int
    tokens: int  # different ones, where no text says how many
    rate: float


SIZES = {
    "tiny": Size(layers=6, width=384, heads=6, sequence=256, tokens=BYTES, rate=1e-3),
    "small": Size(layers=12, width=768, heads=12, sequence=1024, tokens=50_257, rate=6e-4),
}


def make(
    size: Literal["tiny", "small"] = "tiny",
    sequence: int | None = None,
    text: str | None = None,
    tokens: int | None = None,
    temperature: float = 0.8,
) -> Task:
    """The task.

    Args:
        size: `tiny` (6 layers, 384 wide, 10.8 million parameters) or `small` (12 layers, 768 wide: GPT-2's 124 million)
        sequence: tokens per sample; by default 256 for `tiny`, 1024 for `small`
        text: a file of any kind, whose bytes are the tokens; by default tokens are random numbers
        tokens: how many random tokens are drawn; by default 1,048,576
        temperature: how freely it writes: near 0 always the likeliest byte, at 1 each as often as it is predicted

    Example:
        manyhands train gpt:text=book.txt --clip 1 --sample 200
    """
    shape = SIZES[size]
    length = shape.sequence if sequence is None else sequence
    positive("gpt", "at least 1", sequence=length, tokens=TOKENS if tokens is None else tokens)
    positive("gpt", "above 0", temperature=temperature)
    if text is not None and tokens is not None:
        raise BadInput("task gpt: text has tokens of its own; leave out the option tokens, which draws random ones")
    different = shape.tokens if text is None else BYTES
    source = partial(drawn, different, tokens or TOKENS) if text is None else partial(read, text)
    return Task(
        model=partial(
            gpt, padded(different), length, width=shape.width, heads=shape.heads, layers=shape.layers, tied=True
        ),
        train=partial(sequences, source, length, "train"),
        test=partial(sequences, source, length, "test"),
        loss=next_symbol_loss,
        optimizer=partial(adamw, rate=shape.rate),
        schedule=cosine(warmup=0.05),
        batch_size=16,
        name="gpt",
        sample=None if text is None else partial(write, longest=length, temperature=temperature),
    )


def padded(tokens: int) -> int:
    """The next multiple of 64, as matrix products like it: 50,304 for GPT-2's 50,257. Nobody asks for the rest."""
    return -(-tokens // 64) * 64


# ---- data ----------------------------------------------------------------------------------------------------------


def sequences(source: Callable[[], tuple[Tensor, str]], length: int, split: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets out of all tokens: the last tenth to test on, a sequence at least, the rest to train on."""
    tokens, name = source()
    if len(tokens) < 2 * (length + 1):
        raise BadInput(
            f"task gpt: {name} has {len(tokens)} tokens; with sequence={length} at least {2 * (length + 1)} are needed, "
            "a sequence to train on and one to test on"
        )
    cut = len(tokens) - max(len(tokens) // 10, length + 1)
    return in_sequences(tokens[:cut] if split == "train" else tokens[cut:], length)


def drawn(different: int, count: int) -> tuple[Tensor, str]:
    """Random tokens: a factory of data runs under the task's seed, so both splits see the same ones."""
    return torch.randint(different, (count,)), f"tokens={count}"


def read(path: str) -> tuple[Tensor, str]:
    """The bytes of a file."""
    try:
        found = Path(path).read_bytes()
    except OSError as problem:
        raise BadInput(
            f'task gpt: cannot read the text "{path}": {(problem.strerror or str(problem)).lower()}'
        ) from None
    return torch.tensor(np.frombuffer(found, np.uint8), dtype=torch.int64), f'the text "{path}"'


def in_sequences(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, both count x length: each token is a target once, but for the first and an incomplete end."""
    windows = tokens.unfold(0, length + 1, length)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


# ---- recipe --------------------------------------------------------------------------------------------------------


def adamw(parameters: Iterable[tuple[str, nn.Parameter]], rate: float) -> Optimizer:
    """Weight decay on matrices alone: gains and biases would only shrink."""
    named = list(parameters)
    matrices = [(name, value) for name, value in named if value.ndim > 1]
    others = [(name, value) for name, value in named if value.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, betas=(0.9, 0.95))


def write(model: nn.Module, length: int, longest: int, temperature: float) -> str:
    """`length` bytes after an empty line, as text; the same for the same weights."""
    written = write_on(model, b"\n", length, longest=longest, temperature=temperature)
    return bytes(written).decode("utf-8", errors="replace")


task = make()
