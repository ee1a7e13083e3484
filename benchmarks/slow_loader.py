"""The published loader table again: MNIST loaded sample by sample with 0, 1, 2, ... workers, and whole batches beside it.

    python benchmarks/slow_loader.py --workers 0 1 2 auto --steps 300 --rounds 3

Rows take turns, round after round; figures are medians over the rounds. `update` is everything in a step but the load.
"""

from __future__ import annotations

import argparse
import statistics

from tables import show

import manyhands as mh


def figures(run: mh.Run) -> dict[str, float]:
    assert run.phases_ms is not None
    assert run.test is not None
    load = run.phases_ms["load"]
    return {
        "load (ms)": load,
        "update (ms)": sum(run.phases_ms.values()) - load,
        "total (s)": run.seconds or 0.0,
        "test accuracy": run.test["accuracy"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", default=["0", "1", "2", "auto"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    sides = {f"mnist:slow, {count} workers": ("mnist:slow", count) for count in options.workers}
    sides["mnist"] = ("mnist", "0")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    notes: dict[str, list[str]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, (task, count) in sides.items():
            run = mh.fit(
                mh.load_task(task),
                max_steps=options.steps,
                loader_workers=int(count) if count.isdecimal() else count,
                threads=options.threads,
                device="cpu",
                progress=False,
            )
            found[name].append(figures(run))
            notes[name] += run.notes
    rows = [
        {"loading": name, **{key: statistics.median(one[key] for one in several) for key in several[0]}}
        for name, several in found.items()
    ]
    show("MNIST, LeNet, batch 32, single", rows, steps=options.steps, rounds=options.rounds, notes=notes)


if __name__ == "__main__":
    main()
