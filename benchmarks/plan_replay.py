"""How well rows with 8 and 16 ranks follow from rows with 2 and 4, on figures that a machine with 16 cores left behind.

`plan16.json` holds, for three of the tasks of plan.py, what was measured there: costs of `single` by samples, messages between
processes, and the speed of every strategy with 2, 4, 8 and 16 ranks of one thread. Rows with up to four ranks take the place of
trials, `local_sgd` that of ranks that never talk; the rest is forecast by the code of today and held against what was measured.
A change to the simulation can be judged so without such a machine, but not proved: it was developed on these figures.

    python -m benchmarks.plan_replay [lenet mlp gpt] [--wake 0.0003]

`--wake` is what a message takes longer to a rank that sleeps, in seconds: it was not measured there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from benchmarks.plan import TASKS

from manyhands.record.run import PHASES, Run
from manyhands.studies.contenders import Contender, contenders
from manyhands.studies.doctor.machine import free_memory
from manyhands.studies.doctor.needs import needs
from manyhands.studies.plan.bench import work
from manyhands.studies.plan.calibrate import Calibration
from manyhands.studies.plan.forecasts import SIMULATED, Forecaster, Place
from manyhands.studies.plan.paces import spread
from manyhands.studies.plan.transport import Transport
from manyhands.studies.plan.trials import key
from manyhands.training.build import build
from manyhands.training.proof.probe import probe
from manyhands.training.settings import FitSettings

KEPT = json.loads(Path(__file__).with_name("plan16.json").read_text())
RANKS, MOST_TRIED = [2, 4, 8, 16], 4
COPY = 1e-10  # seconds per byte of one core: not measured there, but what such a processor takes


def numbers(found: dict[str, Any]) -> dict[int, Any]:
    return {int(name): value for name, value in found.items()}


def run_of(row: dict[str, Any], samples: float) -> Run:
    run = Run("replay", row["strategy"], {}, ranks=row["ranks"], batch_size=int(samples))
    run.samples_per_second = row["samples_per_second"]
    run.durations_ms = [1000 * samples / row["samples_per_second"]] * 12
    run.phases_ms = dict.fromkeys(PHASES, 0.0)
    run.per_rank = [
        {"rank": number, "phases_ms": {name: one.get(name, 0.0) for name in PHASES}}
        for number, one in enumerate(row.get("per_rank_ms", []))
    ]
    return run


def replay(name: str, wake: float) -> tuple[Calibration, list[Contender], dict[tuple[str, int], Run]]:
    kept, (make, steps) = KEPT["tasks"][name], TASKS[name]
    job = build(make().replace(test=None), FitSettings.of(progress=False, max_steps=steps, device="cpu").step)
    probe(job, [torch.device("cpu")])
    parts = {
        float(samples): {phase: part.get(phase, 0.0) for phase in PHASES}
        for samples, part in numbers(kept["parts"]).items()
    }
    kinds_by_count = numbers(kept["transport"])
    transport = Transport(
        {
            count: {"wake": {0: wake}, **{kind: numbers(sizes) for kind, sizes in kinds.items()}}
            for count, kinds in kinds_by_count.items()
        }
    )
    measured = {(row["strategy"], row["ranks"]): run_of(row, max(parts)) for row in kept["rows"]}
    rows = [row for row in contenders(sorted({name for name, _ in measured} - {"single"}), RANKS, 1) if row.strategy]
    trials = {
        key(row): [measured[row.name, row.ranks]]
        for row in rows
        if row.ranks <= MOST_TRIED and (row.name, row.ranks) in measured
    }
    apart = {
        ranks: [work(one["phases_ms"]) / 1000 for one in run.per_rank]
        for (name, ranks), run in measured.items()
        if run.per_rank
    }
    crowding = {
        ranks: max(1.0, statistics.fmean(found) / work(parts[max(parts) / ranks])) for ranks, found in apart.items()
    }
    found = Calibration(
        job=job, needs=needs(job, free_memory()), cores=16, parts={1: parts}, crowding=crowding, transport=transport,
        copy_per_byte=COPY, trials=trials, refusals={}, memory={}, startup_seconds=0.0, luck=kept["luck"],
        paces={ranks: spread([found]) for ranks, found in apart.items()},
    )  # fmt: skip
    return found, rows, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(KEPT["tasks"]))
    parser.add_argument("--wake", type=float, default=0.0)
    chosen = parser.parse_args()
    errors: dict[str, list[float]] = {}
    held, picked = [], []
    for name in chosen.tasks:
        found, rows, measured = replay(name, chosen.wake)
        forecaster, speeds = Forecaster(found, rows, Place()), {}
        for row in rows:
            one, run = forecaster.forecast(row), measured.get((row.name, row.ranks))
            if run is None or one.samples_per_second is None or one.interval is None or not run.samples_per_second:
                continue
            speeds[row.label] = one.samples_per_second, run.samples_per_second
            if one.basis == SIMULATED:
                error = one.samples_per_second / run.samples_per_second - 1
                errors.setdefault(row.asked, []).append(error)
                held.append(one.interval[0] <= run.samples_per_second <= one.interval[1])
                print(
                    f"  {name:<6} {row.label:<34} {one.samples_per_second:>9,.0f} {run.samples_per_second:>9,.0f} {error:>+7.1%}"
                )
        best, fastest = (max(speeds, key=lambda label, place=place: speeds[label][place]) for place in (0, 1))
        picked.append(best == fastest)
        print(f"  {name}: best by forecast {best}, as measured {fastest}")
    for name, values in errors.items():
        print(f"{name:<24} {statistics.median(map(abs, values)):>6.1%} of {len(values)}")
    sizes = sorted(abs(error) for values in errors.values() for error in values)
    print(
        f"median {statistics.median(sizes):.1%}, 90th percentile {sizes[int(0.9 * len(sizes))]:.1%}, intervals held "
        f"{statistics.fmean(held):.0%}, best picked {sum(picked)} of {len(picked)}, {len(sizes)} rows"
    )


if __name__ == "__main__":
    main()
