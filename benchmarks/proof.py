"""What the proof of exactness costs before a fit starts (docs/exactness.md): LeNet, MobileNetV2, a GPT of 10 million parameters.

    python benchmarks/proof.py [--rounds 5]

Each model is built, then tried as `fit` does it under ddp: the pass over two samples that every fit makes, and the proof on
top of it. Medians, in milliseconds, with one thread.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands import Task, load_task
from manyhands.strategies.job import StepSettings
from manyhands.training.build import build
from manyhands.training.proof.probe import probe


class GPT(nn.Module):
    """A decoder of 10 million parameters: 6 layers of width 360 over 65 symbols, 64 at a time."""

    def __init__(self, width: int = 360, layers: int = 6, symbols: int = 65, length: int = 64):
        super().__init__()
        self.embed, self.place = nn.Embedding(symbols, width), nn.Embedding(length, width)
        block = partial(nn.TransformerEncoderLayer, width, 6, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([block() for _ in range(layers)])
        self.out = nn.Linear(width, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.out(x).transpose(1, 2)


def gpt() -> Task:
    tokens = torch.randint(0, 65, (256, 64), generator=torch.Generator().manual_seed(0))
    return Task(GPT, (tokens, tokens.roll(-1, 1)), F.cross_entropy, partial(torch.optim.AdamW, lr=1e-3), batch_size=32)


def mobilenet() -> Task:
    from manyhands.tasks.models.mobilenet import mobilenetv2

    images, labels = torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,))
    return Task(mobilenetv2, (images, labels), F.cross_entropy, partial(torch.optim.SGD, lr=0.1), batch_size=128)


def milliseconds(task: Task, divided: bool) -> float:
    job = build(task, StepSettings())
    began = perf_counter()
    probe(job, [torch.device("cpu")], divided=divided)
    assert not divided or job.proof.unchecked is None, job.proof.unchecked
    return 1000 * (perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, {rounds} rounds, one thread\n{'model':22}{'parameters':>12}{'pass ms':>9}{'proof ms':>10}"
    )
    for name, make in (
        ("LeNet (glyphs)", lambda: load_task("glyphs")),
        ("MobileNetV2 (32x32)", mobilenet),
        ("GPT", gpt),
    ):
        task = make()
        size = sum(parameter.numel() for parameter in build(task, StepSettings()).model.parameters())
        both = [(milliseconds(task, False), milliseconds(task, True)) for _ in range(rounds)]
        alone, proven = median(a for a, _ in both), median(b for _, b in both)
        print(f"{name:22}{size:12,}{alone:9.0f}{proven - alone:10.0f}", flush=True)


if __name__ == "__main__":
    main()
