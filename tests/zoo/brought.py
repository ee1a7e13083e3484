"""Code that people bring, each a file under examples/bring, under every strategy: `python -m tests.zoo.brought` prints the matrix."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from torch import Tensor

import manyhands as mh
from manyhands.strategies import TABLE

FOLDER = Path(__file__).parents[2] / "examples" / "bring"
CASES = sorted(path.stem for path in FOLDER.glob("*.py"))
STRATEGIES = [name for name in TABLE if name != "single"]
STEPS, NOISE = 6, 1e-5
SETTINGS = {"max_steps": STEPS, "threads": 1, "progress": False}


@cache
def task_of(case: str) -> mh.Task:
    return mh.load_task(FOLDER / f"{case}.py")


@cache
def by_single(case: str, accumulate: int = 1) -> dict[str, Tensor]:
    return mh.fit(task_of(case), "single", accumulate=accumulate, **SETTINGS).weights  # type: ignore[arg-type]


def judge(case: str, strategy: str, accumulate: int = 1) -> str:
    """`equal` with the difference, `inexact` or `refused` with the reason; a promise that is not kept fails."""
    return judged(task_of(case), by_single(case, accumulate), strategy, accumulate)


def judged(task: mh.Task, expected: dict[str, Tensor], strategy: str, accumulate: int = 1) -> str:
    try:
        run = mh.fit(task, strategy, ranks=4 if "hybrid" in strategy else 2, accumulate=accumulate, **SETTINGS)  # type: ignore[arg-type]
    except mh.BadInput as refusal:
        return f"refused: {refusal}"
    if not run.exact:
        assert run.exact_reason
        return f"inexact: {run.exact_reason}"
    apart = max(_apart(value, run.weights[name]) for name, value in expected.items())
    assert apart <= NOISE, f"{task.name} under {strategy} promises the weights of single and is off by {apart:.1e}"
    return f"equal ({apart:.0e})"


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, of the largest number."""
    if not one.numel():
        return 0.0
    return float((one.double() - other.double()).abs().max()) / max(float(one.double().abs().max()), 1e-3)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        for strategy in STRATEGIES:
            print(f"{case:18} {strategy:24} {judge(case, strategy)}", flush=True)
        if case == "padded_gpt2":
            print(f"{case:18} {'ddp, accumulate=3':24} {judge(case, 'ddp', 3)}", flush=True)
