"""Claim: on models that nothing was tuned for, `fit` is not slower than a loop by hand, and `ddp` faster than torch's over gloo.

The jobs of plan_unseen.py, but for the one whose model takes two inputs. Both sides read the same batches in the same order,
one thread per rank, and take turns; milliseconds of the median step, medians over the rounds, ratios within a round.

    python benchmarks/unseen_models.py [--rounds 3] [residual wide ...]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from plan_unseen import UNSEEN
from tables import show
from torch_sides import by_torch

import manyhands as mh

NAMES = [name for name in UNSEEN if name != "padded"]
SIDES = {"single": ("apart", 1), "ddp": ("ddp", 2)}  # ours: torch's (torch_sides.py), ranks
SECONDS, FEWEST, MOST = 0.7, 15, 400  # of a side, and its steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for name in options.names:
        task = UNSEEN[name][0]()
        task = task.replace(train=lambda data=task.train: data, name=name)
        first = mh.fit(task, "single", max_steps=10, threads=1, progress=False)
        assert first.step_ms is not None
        steps = round(min(MOST, max(FEWEST, 1000 * SECONDS / first.step_ms["median"])))
        found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
        for _ in range(options.rounds):
            for side, (other, ranks) in SIDES.items():
                run = mh.fit(task, side, ranks=ranks, max_steps=steps, threads=1, progress=False)
                assert run.step_ms is not None
                found[side].append((run.step_ms["median"], by_torch(task, other, ranks, steps).step_ms))
        for side, pairs in found.items():
            ratios = sorted(theirs / ours for ours, theirs in pairs)
            rows.append(
                {
                    "job": name,
                    "strategy": side,
                    "ours (ms)": statistics.median(ours for ours, _ in pairs),
                    "torch (ms)": statistics.median(theirs for _, theirs in pairs),
                    "times as fast": statistics.median(ratios),
                    "lowest": ratios[0],
                    "highest": ratios[-1],
                }
            )
    show("models that nothing was tuned for, against torch", rows, rounds=options.rounds)


if __name__ == "__main__":
    main()
