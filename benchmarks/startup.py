"""Claim: `manyhands --help`, `manyhands strategies` and a misspelt name answer within 0.5 s, without importing torch, and a
second fit of a program is before its first step within 1.5 s on 2 ranks. A whole `manyhands train` on the CPU spends at most 3 s
on anything but training, from prompt to prompt.

Every try is a fresh process; a fit's start-up is the record's `startup_seconds`. The first fit of a program also starts
the server that ranks are forked from.

    python benchmarks/startup.py [--tries 5] [--commands] [--against SRC]      # --commands: without the fits
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tables import show

PROGRAM = ["-m", "manyhands"]
COMMANDS = (["--help"], ["strategies"], ["strategies", "ddp"], ["train", "nosuch"], ["train", "glyphs", "ddp:chunks=3"])
WHOLE = (["glyphs", "single"], ["glyphs", "ddp", "--ranks", "2"])  # one epoch each, with its test
TWO_FITS = """
import manyhands as mh
task = mh.load_task("glyphs")
for _ in range(2):
    print(mh.fit(task, "ddp", ranks=2, device="cpu", max_steps=5, progress=False).startup_seconds)
"""


def seconds_of(words: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *PROGRAM, *words], capture_output=True, check=False)  # a misspelt name exits with 2
    return time.perf_counter() - began


def seconds_of_fits() -> list[float]:
    done = subprocess.run([sys.executable, "-c", TWO_FITS], stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def seconds_around(words: list[str], source: str | None) -> float:
    """Of a whole command, what is not the time of its training steps."""
    began = time.perf_counter()
    command = [sys.executable, *PROGRAM, "train", *words, "--epochs", "1", "--device", "cpu", "--quiet", "--json"]
    environment = {**os.environ, **({"PYTHONPATH": source} if source else {})}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--run-dir", folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
            env=environment,
        )
    return time.perf_counter() - began - float(json.loads(done.stdout)["seconds"])


def imports_torch(words: list[str]) -> bool:
    imported = subprocess.run(
        [sys.executable, "-X", "importtime", *PROGRAM, *words], capture_output=True, text=True, check=False
    ).stderr
    return any(line.split("|")[-1].strip() == "torch" for line in imported.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--against", help="the src folder of another version: its whole commands are measured in turn")
    options = parser.parse_args()
    found = {f"manyhands {' '.join(words)}": [seconds_of(words) for _ in range(options.tries)] for words in COMMANDS}
    if not options.commands:
        fits = [seconds_of_fits() for _ in range(options.tries)]
        found["first fit, ddp on 2 ranks"] = [first for first, _ in fits]
        found["second fit of the program"] = [second for _, second in fits]
        sides = {"": None, **({" before": options.against} if options.against else {})}
        for words, (side, source) in itertools.product(WHOLE * options.tries, sides.items()):
            what = f"around the steps of `train {' '.join(words)}`{side}"
            found.setdefault(what, []).append(seconds_around(words, source))
    rows = [
        {"what": what, "median s": statistics.median(values), "fastest": min(values), "slowest": max(values)}
        for what, values in found.items()
    ]
    show(
        "Seconds until it answers, or makes its first step",
        rows,
        tries=options.tries,
        commands_import_torch=any(map(imports_torch, COMMANDS)),
    )


if __name__ == "__main__":
    main()
