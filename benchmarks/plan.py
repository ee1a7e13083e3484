"""How good forecasts are: plan first, compare afterwards, and score; task after task, with every strategy.

    python -m benchmarks.plan --ranks 2                     six tasks, every strategy on 2 ranks
    python -m benchmarks.plan lenet gpt --ranks 2 --no-trials

Forecasts are kept and the comparisons made in one folder (default: a temporary one), so that `manyhands plan --score`
shows the same figures again. What is compared is not what was tried: the rows are fitted and measured in rounds afterwards.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import manyhands as mh
from manyhands.record.run import environment
from manyhands.strategies.table import TABLE
from manyhands.studies.plan.plan import kept, plan
from manyhands.studies.plan.score import score


def deep_mlp() -> mh.Task:
    """Eight layers of 512 on 2,048 samples of noise."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(2048, 512, generator=generator), torch.randint(10, (2048,), generator=generator)

    def model() -> nn.Module:
        hidden = [layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(512, 10))

    return mh.Task(
        model,
        data,
        nn.functional.cross_entropy,
        functools.partial(torch.optim.SGD, lr=0.01),
        batch_size=128,
        name="mlp",
    )


TASKS = {
    "lenet": lambda: mh.load_task("glyphs"),
    "mobilenet": lambda: mh.load_task("cifar10:width=0.25").replace(batch_size=32),
    "mlp": deep_mlp,
    "lstm": lambda: mh.load_task("reviews"),
    "gpt": lambda: mh.load_task("shakespeare:model=gpt"),
    "sparse": lambda: mh.load_task("sparse"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--strategies", default=",".join(TABLE))
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of every whole fit, about")
    parser.add_argument("--no-trials", action="store_true")
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="plan-"))
    ranks = [int(count) for count in chosen.ranks.split(",")]
    print(json.dumps(environment()))
    for name in chosen.tasks:
        task = TASKS[name]().replace(name=name, test=None)
        began = time.monotonic()
        found = plan(
            task, chosen.strategies.split(","), ranks=ranks, budget=chosen.budget, trials=not chosen.no_trials,
            runs=folder, max_steps=10_000,
        )  # fmt: skip
        kept(found, folder)
        planned = time.monotonic() - began
        time.sleep(1.0)  # ledger and records count whole seconds
        slowest = max(one.step_ms for one in found.forecasts if one.feasible and one.step_ms)
        steps = max(20, min(400, int(1000 * chosen.seconds / slowest)))
        runs = mh.compare(
            task, chosen.strategies.split(","), ranks=ranks, rounds=chosen.rounds, max_steps=steps, progress=False,
            run_dir=folder / name,
        )  # fmt: skip
        print(
            f"\n{name}: planned in {planned:.0f} s, compared in {time.monotonic() - began - planned:.0f} s ({steps} steps)"
        )
        for run in runs:
            kept_forecast = run.forecast or {}
            forecast, measured = kept_forecast.get("samples_per_second"), run.samples_per_second
            if not forecast or not measured:
                print(f"  {run.label:<32} {run.ranks:>3} {run.status}: {(run.reason or '')[:60]}")
                continue
            low, high = kept_forecast["interval"]
            held = "held" if low <= measured <= high else "missed"
            print(
                f"  {run.label:<32} {run.ranks:>3} {forecast:>9,.0f} {measured:>9,.0f} "
                f"{100 * (forecast / measured - 1):>+6.1f} % {held:<6} {kept_forecast['basis']}"
            )
        print(f"  best: {found.best.strategy if found.best else None}", flush=True)
    result = score(folder)
    print(json.dumps({"summary": result["summary"], "by_strategy": result["by_strategy"]}, indent=1))


if __name__ == "__main__":
    main()
