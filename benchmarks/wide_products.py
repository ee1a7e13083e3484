"""Products of matrices by MKL and by oneDNN, alone and in whole trainings; and whether `fit` would choose oneDNN.

The first table has single products of one thread, forward and back, as autograd makes them in a linear layer: with torch's
kernels and with ours in their place, in turn, medians of the rounds. LEAST, SAVED, CALL and PASSED_ON in
src/manyhands/model/wide_products.py are rounded from it. The second has whole fits of `single` with and without, in turn.

    python benchmarks/wide_products.py [--rounds 15] [--fits 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
import wider_models
from tables import show

import manyhands as mh
from manyhands.model import wide_products

SHAPES = (  # rows, inputs, outputs
    (32, 84, 10), (32, 400, 120), (64, 128, 128), (128, 128, 128), (32, 256, 256), (64, 256, 256), (256, 256, 256),
    (64, 1024, 1024), (256, 1024, 1024), (2048, 256, 65), (2048, 256, 1024), (512, 768, 3072),
)  # fmt: skip


def microseconds(product: Callable[[], Any], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        product()
    return 1e6 * (time.perf_counter() - began) / times


def products_alone(rounds: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = []
    for rows, inputs, outputs in SHAPES:
        input, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
        gradient = torch.randn(rows, outputs)
        kinds: dict[str, Callable[[], Any]] = {
            "forward": lambda x=input, w=weight, b=bias: F.linear(x, w, b),
            "to the input": lambda g=gradient, w=weight: g.mm(w),
            "to the weight": lambda g=gradient, x=input: g.t().mm(x),
        }
        work = rows * inputs * outputs
        times = max(3, min(2000, 40_000_000 // work))
        row: dict[str, Any] = {"rows x inputs > outputs": f"{rows} x {inputs} > {outputs}", "million": work / 1e6}
        for kind, product in kinds.items():
            spent: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(rounds + 1):  # the first warms up
                for wide in spent:
                    with wide_products.wide_products(wide):
                        spent[wide].append(microseconds(product, times))
            narrow, wide = (statistics.median(spent[side][1:]) for side in (False, True))
            row |= {f"{kind}, us": narrow, f"{kind}, wide": wide / narrow}
        table.append(row)
    return table


@contextmanager
def only(wide: bool) -> Iterator[None]:
    """Fits choose as on this processor, or as on one that gains nothing."""
    chosen = wide_products.half_width
    try:
        if not wide:
            wide_products.half_width = lambda: False  # type: ignore[assignment]
        yield
    finally:
        wide_products.half_width = chosen


def whole_fits(fits: int) -> list[dict[str, Any]]:
    tasks = {
        **wider_models.tasks(),
        "lstm (reviews)": mh.load_task("reviews").replace(test=None),
        "lenet (glyphs)": mh.load_task("glyphs").replace(test=None),
    }
    table = []
    for name, task in tasks.items():
        spent: dict[bool, list[float]] = {False: [], True: []}
        took = None
        for _ in range(fits):
            for wide in spent:
                with only(wide):
                    run = mh.fit(task, "single", threads=1, max_steps=30, device="cpu", progress=False)
                assert run.step_ms is not None
                spent[wide].append(run.step_ms["median"])
                took = run.wide_products if wide else took
        narrow, wide_ms = statistics.median(spent[False]), statistics.median(spent[True])
        ratios = [before / after for before, after in zip(spent[False], spent[True], strict=True)]
        table.append(
            {
                "model": name, "fit takes": "wide" if took else "torch's", "torch's ms": narrow, "fit's ms": wide_ms,
                "times": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
            }
        )  # fmt: skip
    return table


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--fits", type=int, default=3)
    chosen = options.parse_args()
    print(f"this processor leaves half of its width to MKL: {wide_products.half_width()}")
    show(f"products by oneDNN as shares of MKL's, median of {chosen.rounds} rounds", products_alone(chosen.rounds))
    show(f"steps of `single`, one thread, median of {chosen.fits} fits", whole_fits(chosen.fits))


if __name__ == "__main__":
    main()
