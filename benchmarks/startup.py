"""Claim: `manyhands --help` answers within 0.5 s, without importing torch, and a second fit of a program is before its
first step within 1.5 s on 2 ranks.

Every try is a fresh process; a fit's start-up is the record's `startup_seconds`. The first fit of a program also starts
the server that ranks are forked from.

    python benchmarks/startup.py [--tries 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tables import show

HELP = [sys.executable, "-m", "manyhands", "--help"]
TWO_FITS = """
import manyhands as mh
task = mh.load_task("glyphs")
for _ in range(2):
    print(mh.fit(task, "ddp", ranks=2, device="cpu", max_steps=5, progress=False).startup_seconds)
"""


def seconds_of_help() -> float:
    began = time.perf_counter()
    subprocess.run(HELP, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def seconds_of_fits() -> list[float]:
    done = subprocess.run([sys.executable, "-c", TWO_FITS], stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def help_imports_torch() -> bool:
    imported = subprocess.run(
        [sys.executable, "-X", "importtime", *HELP[1:]], capture_output=True, text=True, check=True
    ).stderr
    return any(line.split("|")[-1].strip() == "torch" for line in imported.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=5)
    options = parser.parse_args()
    fits = [seconds_of_fits() for _ in range(options.tries)]
    found = {
        "manyhands --help": [seconds_of_help() for _ in range(options.tries)],
        "first fit, ddp on 2 ranks": [first for first, _ in fits],
        "second fit of the program": [second for _, second in fits],
    }
    rows = [
        {"what": what, "median s": statistics.median(values), "fastest": min(values), "slowest": max(values)}
        for what, values in found.items()
    ]
    show(
        "Seconds until it answers, or makes its first step",
        rows,
        tries=options.tries,
        help_imports_torch=help_imports_torch(),
    )


if __name__ == "__main__":
    main()
