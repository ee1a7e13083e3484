"""Claim: beside a process that burns one core, a fit with as many threads as cores goes on at a fair share of its speed.

OpenMP's threads wait for each other after every operation. By default they spin meanwhile, and on a busy machine that keeps
the thread that all wait for off its core; the ranks' server tells them to sleep soon (world/launch/fork_server.py). The
sides differ in GOMP_SPINCOUNT alone and take turns, each quiet and beside burners.

    python benchmarks/busy.py [--rounds 5] [--burners 1] [--spins default,3000,10000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tables import show

FIT = """
import manyhands as mh
run = mh.fit(mh.load_task("glyphs"), "single", device="cpu", max_steps={steps}, progress=False)
print(run.samples_per_second, run.evaluation_seconds)
"""
DEFAULT = "300000"  # what GNU's OpenMP takes where nobody says anything


def measured(spin: str, steps: int) -> tuple[float, float]:
    environment = {**os.environ, "GOMP_SPINCOUNT": DEFAULT if spin == "default" else spin}
    if spin == "ours":
        del environment["GOMP_SPINCOUNT"]
    code = FIT.format(steps=steps)
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    speed, evaluation = map(float, done.stdout.split())
    return speed, evaluation


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--burners", type=int, default=1)
    parser.add_argument("--spins", default="default,ours")
    options = parser.parse_args()
    spins = options.spins.split(",")
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for beside, burners in (("nothing", 0), (f"{options.burners} burning", options.burners)):
            burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(burners)]
            try:
                for spin in spins:
                    found.setdefault((spin, beside), []).append(measured(spin, options.steps))
            finally:
                for process in burning:
                    process.kill()
                    process.wait()
    rows = [
        {
            "spins": spin,
            "beside": beside,
            "samples/s": statistics.median(speed for speed, _ in values),
            "slowest": min(speed for speed, _ in values),
            "fastest": max(speed for speed, _ in values),
            "evaluation s": statistics.median(seconds for _, seconds in values),
        }
        for (spin, beside), values in found.items()
    ]
    show("glyphs, single, as many threads as cores", rows, rounds=options.rounds, steps=options.steps)


if __name__ == "__main__":
    main()
