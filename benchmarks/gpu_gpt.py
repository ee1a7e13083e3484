"""Claim to be measured: tokens per second of `fit` on GPT-2's shape, bf16, against the best loop by hand, and the memory of both.

The built-in task `gpt` on random tokens: speed does not depend on what they say. Attention is torch's
`scaled_dot_product_attention`, flash attention on a GPU, on both sides.

    python benchmarks/gpu_gpt.py [--rounds 3] [--sizes tiny small] [--steps 40] [--device cuda] [--no-compile] [--smoke]

`--device cpu --smoke` shows in a minute that both sides run; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from gpu_sides import Side, by_hand, fitted, measure, parameters

import manyhands as mh
from manyhands.tasks import load_task
from manyhands.tasks.gpt import SIZES, in_sequences

BATCH = {"tiny": 64, "small": 16}


def tokens(different: int, length: int, count: int) -> tuple[Tensor, Tensor]:
    return in_sequences(torch.randint(different, (count * length + 1,)), length)


def sides(task: mh.Task, device: str, compiled: bool, recorded: bool) -> dict[str, Side]:
    found: dict[str, Side] = {"by hand": partial(by_hand, task, device), "manyhands": partial(fitted, task, device)}
    if recorded:
        found["by hand, CUDA graph"] = partial(by_hand, task, device, graph=True)
        found["manyhands, capture=off"] = partial(fitted, task, device, capture="off")
    if compiled:
        found["by hand, compile"] = partial(by_hand, task, device, compile=True)
        found["manyhands, compile"] = partial(fitted, task, device, compile=True)
    if compiled and recorded:
        found["by hand, compile, CUDA graph"] = partial(by_hand, task, device, compile=True, graph=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, help="sequences per step; default 64 for tiny, 16 for small")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="a few short steps of tiny, not compiled")
    options = parser.parse_args()
    for size in ["tiny"] if options.smoke else options.sizes:
        length = 16 if options.smoke else SIZES[size].sequence
        batch = 2 if options.smoke else options.batch or BATCH[size]
        steps, rounds = (3, 1) if options.smoke else (options.steps, options.rounds)
        task = load_task(f"gpt:size={size},sequence={length}", batch)
        task = task.replace(train=partial(tokens, SIZES[size].tokens, length, batch * steps), test=None)
        compiled = not (options.no_compile or options.smoke)
        measure(
            f"gpt:size={size} ({parameters(task.model()):,} parameters), {batch} sequences of {length}, bf16: tokens per second",
            sides(task, options.device, compiled, recorded=options.device == "cuda"),
            rounds, "tokens", length, steps=steps, batch=batch, device=options.device,
        )  # fmt: skip


if __name__ == "__main__":
    main()
