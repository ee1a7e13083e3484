"""How good forecasts are: plan first, compare afterwards, and score; task after task, with every strategy.

    python -m benchmarks.plan --ranks 2                     six tasks, every strategy on 2 ranks
    python -m benchmarks.plan --unseen                      ten jobs on which nothing was tuned (plan_unseen.py)
    python -m benchmarks.plan --ranks 2,4,8,16 --budget 180 on 16 cores: trials with at most 4 ranks, the rest simulated
    ... --slices 0.4                                        where machine time is short: rows are not fitted as
                                                            a whole, their speed is that of slices in turn: one of each row,
                                                            then more of those near the fastest

Forecasts are kept and the comparisons made in one folder (default: a temporary one), so that `manyhands plan --score`
shows the same figures again. What is compared is not what was tried: the rows are fitted and measured in rounds afterwards.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from benchmarks.plan_unseen import UNSEEN
from torch import nn

import manyhands as mh
from manyhands.record.run import Run, environment
from manyhands.record.run_forecast import learn_forecast
from manyhands.strategies.table import TABLE
from manyhands.studies.contenders import contenders
from manyhands.studies.plan.calibrate import Calibration
from manyhands.studies.plan.forecasts import Forecaster, Place
from manyhands.studies.plan.plan import kept, plan
from manyhands.studies.plan.score import score
from manyhands.studies.rounds import take_rounds
from manyhands.studies.slices import Variant, run_slice, steady_ms
from manyhands.training.settings import FitSettings

# Slices of rows that are nearly as fast as the fastest, of that share of its speed; the others have one.
ROUNDS, NEAR = 3, 0.85


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


def mobilenet() -> mh.Task:
    """MobileNetV2 on 2,048 random images: the speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2048, 3, 32, 32), dtype=torch.uint8, generator=generator)
    data = images, torch.randint(10, (2048,), generator=generator)
    return mh.load_task("cifar10:width=0.25").replace(batch_size=32, train=data)


TASKS = {  # and the steps of a job: those of a second or so, on two cores
    "lenet": (lambda: mh.load_task("glyphs"), 400),
    "mobilenet": (mobilenet, 50),
    "mlp": (deep_mlp, 200),
    "lstm": (lambda: mh.load_task("reviews"), 140),
    "gpt": (lambda: mh.load_task("shakespeare:model=gpt"), 20),
    "sparse": (lambda: mh.load_task("sparse"), 400),
}


def simulated_alone(
    found: Calibration, strategies: list[str], ranks: list[int]
) -> dict[tuple[str, int, int | None], float]:
    """What the simulation would have said without any trial of whole rows."""
    rows = contenders(strategies, ranks, None)
    forecaster = Forecaster(replace(found, trials={}), rows, Place())
    forecasts = [forecaster.forecast(row) for row in rows]
    return {(one.strategy, one.ranks, one.threads): one.samples_per_second or 0.0 for one in forecasts}


def measured_in_slices(
    task: mh.Task, names: list[str], ranks: list[int], seconds: float, steps: int, folder: Path
) -> list[Run]:
    """As a comparison keeps them, every row with the figures of its slices."""
    rows = [row for row in contenders(names, ranks, None) if row.strategy is not None]
    settings = FitSettings.of(progress=False, max_steps=steps, device="cpu")
    variants = [Variant(row.label, task, row.strategy, replace(settings, threads=row.threads)) for row in rows]  # type: ignore[arg-type]
    for number in range(ROUNDS):
        speeds = [statistics.median(_speed(run) for run in one.runs) if one.runs else 0.0 for one in variants]
        for variant, speed in zip(variants, speeds, strict=True):
            if variant.problem is None and (number == 0 or speed > NEAR * max(speeds)):
                variant.slices.append(run_slice(variant, seconds))
    found = []
    for row, variant in zip(rows, variants, strict=True):
        if variant.runs:
            run = copy.copy(variant.runs[0])
            run.weights, run.comparison, run.asked = None, task.name, row.asked
            run.started = datetime.now(UTC).isoformat(timespec="seconds")
            take_rounds(run, variant.runs)
            learn_forecast(run, folder / row.folder)
            run.save(folder / row.folder)
            found.append(run)
    return found


def _speed(run: Run) -> float:
    """Without the first steps: a whole fit has so many that they do not count."""
    return 1000 * (run.batch_size or 0) / steady_ms(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join([*TASKS, *UNSEEN])}")
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--strategies", default=",".join(TABLE))
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slices", type=float, help="seconds of a slice, in the place of whole fits and rounds")
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="plan-"))
    ranks = [int(count) for count in chosen.ranks.split(",")]
    print(json.dumps(environment()))
    names, without = chosen.strategies.split(","), []
    known = {**TASKS, **UNSEEN}
    for name in chosen.tasks or (UNSEEN if chosen.unseen else TASKS):
        make, steps = known[name]
        task = make().replace(name=name, test=None)
        began = time.monotonic()
        found = plan(task, names, ranks=ranks, budget=chosen.budget, runs=folder, max_steps=steps, device="cpu")
        kept(found, folder)
        planned = time.monotonic() - began
        simulated = simulated_alone(found.calibration, names, ranks)
        time.sleep(1.0)  # ledger and records count whole seconds
        if chosen.slices:
            runs = measured_in_slices(task, names, ranks, chosen.slices, steps, folder / name)
        else:
            runs = mh.compare(
                task, names, ranks=ranks, rounds=chosen.rounds, max_steps=steps, device="cpu", progress=False,
                run_dir=folder / name,
            )  # fmt: skip
        print(f"\n{name}: planned in {planned:.0f} s, compared in {time.monotonic() - began - planned:.0f} s")
        for run in runs:
            kept_forecast = run.forecast or {}
            forecast, measured = kept_forecast.get("samples_per_second"), run.samples_per_second
            if not forecast or not measured:
                print(f"  {run.label:<32} {run.ranks:>3} {run.status}: {(run.reason or '')[:60]}")
                continue
            low, high = kept_forecast["interval"]
            held = "held" if low <= measured <= high else "missed"
            alone = simulated.get((run.label, run.ranks, run.threads), 0.0) / measured - 1
            without += [abs(alone)] if run.strategy != "single" else []
            print(
                f"  {run.label:<32} {run.ranks:>3} {forecast:>9,.0f} {measured:>9,.0f} {forecast / measured - 1:>+7.1%} "
                f"{held:<6} {kept_forecast['basis']}, simulated alone {alone:+.1%}"
            )
        print(f"  best: {found.best.strategy if found.best else None}", flush=True)
    print(f"simulated alone, without `single`: median error {statistics.median(without):.1%} of {len(without)} rows")
    result = score(folder)
    print(json.dumps({"summary": result["summary"], "by_strategy": result["by_strategy"]}, indent=1))


if __name__ == "__main__":
    main()
