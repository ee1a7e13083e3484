"""A few rows times the weight of a linear layer: the products of a pipeline's chunks, as torch makes them and as we do.

One process, one thread. Forward is `rows @ weight.T` by MKL (F.linear) or directly by oneDNN; back is `gradient @ weight`
whole or in slices. Several weights of 16 MiB together take turns, as in a model, so none stays in the nearer caches; both
sides of a product in turn, medians of the rounds. The limits in src/manyhands/model/thin_products.py are from such tables.

    python benchmarks/thin_products.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from tables import show
from torch import Tensor

from manyhands.model import thin_products
from manyhands.model.torch_internals import DIRECT_PRODUCT

SHAPES = ((512, 512), (768, 3072), (3072, 768), (1000, 1000), (1024, 1024), (1024, 4096), (4096, 1024), (2048, 2048))
ROWS = (16, 32, 64, 128, 192, 256)
TOGETHER = 4 << 20  # numbers in the weights that take turns


def milliseconds(weights: list[Tensor], product: Callable[[Tensor], Tensor]) -> float:
    began = time.perf_counter()
    for weight in weights:
        product(weight)
    return 1000 * (time.perf_counter() - began) / len(weights)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=15)
    rounds = options.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = []
    for inputs, outputs in SHAPES:
        weights = [torch.randn(outputs, inputs) for _ in range(max(2, TOGETHER // (inputs * outputs)))]
        bias = torch.randn(outputs)
        for count in ROWS:
            rows, gradient = torch.randn(count, inputs), torch.randn(count, outputs)
            sides: dict[str, Callable[[Tensor], Tensor]] = {
                "forward": lambda weight, x=rows, b=bias: F.linear(x, weight, b),
                "direct": lambda weight, x=rows, b=bias: DIRECT_PRODUCT.found(x, weight, b, "none", [], ""),
                "back": lambda weight, g=gradient: g @ weight,
                "sliced": lambda weight, g=gradient: thin_products._in_slices(g, weight),
            }
            spent: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(rounds + 1):  # the first warms up
                for side, product in sides.items():
                    spent[side].append(milliseconds(weights, product))
            found = {side: statistics.median(values[1:]) for side, values in spent.items()}
            chosen = [
                *(["direct"] if thin_products.direct_pays(rows, weights[0]) else []),
                *(["sliced"] if thin_products.slices_pay(gradient, weights[0]) else []),
            ]
            table.append(
                {
                    "inputs": inputs,
                    "outputs": outputs,
                    "rows": count,
                    "forward ms": found["forward"],
                    "direct": found["direct"] / found["forward"],
                    "back ms": found["back"],
                    "sliced": found["sliced"] / found["back"],
                    "chosen": " ".join(chosen),
                }
            )
    show(f"thin products, direct and sliced as shares of the whole, median of {rounds} rounds", table)


if __name__ == "__main__":
    main()
