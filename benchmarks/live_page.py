"""Claim: `manyhands serve` lists 1,000 stored runs in under a second, and two viewers who follow a fit cost it nothing
that can be told from noise.

The list is asked for over HTTP, from a server that has just started and then again; a run has as many losses as an
hour of training leaves. The fits take turns, one with two viewers who ask as the pages do (the list every 1.5 s, the
page of the run every 2 s), one with nobody looking; the ratio of each pair counts.

    python benchmarks/live_page.py [--runs 1000] [--losses 1000] [--tries 5] [--pairs 9] [--steps 1500]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import manyhands as mh
from manyhands.record.run import Run

sys.path.insert(0, str(Path(__file__).parent))
from tables import median_interval, show

LIST_SECONDS, PAGE_SECONDS = 1.5, 2.0  # as list.js and view.js have it


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server of its own process; the address under which everything lies."""
    words = [sys.executable, "-m", "manyhands", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().strip())
        try:
            yield f"http://{address.netloc}/{address.query.removeprefix('token=')}/"
        finally:
            process.terminate()


def asked(address: str) -> bytes:
    with urlopen(address, timeout=60) as answer:
        return bytes(answer.read())


def write_runs(folder: Path, count: int, losses: int) -> None:
    source = random.Random(1)
    for number in range(count):
        run = Run(
            "glyphs",
            source.choice(["single", "ddp", "hogwild"]),
            ranks=2,
            started=f"2026-01-{number % 28 + 1:02d}T10:00:00+00:00",
            samples_per_second=source.uniform(1e3, 1e4),
            losses=[source.random() for _ in range(losses)],
            test={"accuracy": source.random(), "samples": 1000, "loss": 1.0},
        )
        (folder / str(number)).mkdir()
        (folder / str(number) / "run.json").write_text(run.to_json())


def seconds_to_list(base: str) -> tuple[float, float, int]:
    """Until the first answer, until the last of the runs, and the bytes of it."""
    began, first = time.perf_counter(), None
    while True:
        answer = asked(f"{base}api/runs")
        first = first or time.perf_counter() - began
        if not json.loads(answer)["reading"]:
            return first, time.perf_counter() - began, len(answer)


def list_rows(count: int, losses: int, tries: int) -> list[dict[str, object]]:
    found: dict[str, list[tuple[float, float, int]]] = {"a server just started": [], "again": []}
    with tempfile.TemporaryDirectory() as place:
        write_runs(Path(place), count, losses)
        for _ in range(tries):
            with serving(Path(place)) as base:
                asked(base)  # what the server imports late is not the list's
                found["a server just started"].append(seconds_to_list(base))
                time.sleep(1.5)  # so that it looks through the folder again
                found["again"].append(seconds_to_list(base))
    return [
        {
            "list": what,
            "first lines s": statistics.median(first for first, _, _ in times),
            "all lines s": statistics.median(last for _, last, _ in times),
            "slowest": max(last for _, last, _ in times),
            "kB": times[0][2] / 1000,
        }
        for what, times in found.items()
    ]


def view(base: str) -> None:
    """Two viewers, each with the list and the page of the running run open, until this process is ended."""

    def look(at: str, every: float) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError, StopIteration):
                path = "api/runs?since=1"
                if at == "page":
                    runs = json.loads(asked(f"{base}api/runs"))["runs"]
                    path = f"runs?id={next(run['id'] for run in runs if run['status'] == 'running')}"
                asked(base + path)
            time.sleep(every)

    for _ in range(2):
        for at, every in (("list", LIST_SECONDS), ("page", PAGE_SECONDS)):
            threading.Thread(target=look, args=(at, every)).start()


@contextlib.contextmanager
def watched(base: str) -> Iterator[None]:
    viewers = subprocess.Popen([sys.executable, __file__, "--view", base])
    try:
        yield
    finally:
        viewers.kill()
        viewers.wait()


def cost_rows(pairs: int, steps: int) -> list[dict[str, object]]:
    task, order = mh.load_task("glyphs"), random.Random(0)
    speeds: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as place, serving(Path(place)) as base:
        for number in range(pairs + 1):  # the first pair warms up
            for seen in order.sample([True, False], 2):
                with watched(base) if seen else contextlib.nullcontext():
                    run_dir = Path(place) / f"{number}-{seen}"
                    run = mh.fit(
                        task, "ddp", ranks=2, threads=1, device="cpu", max_steps=steps, run_dir=run_dir, progress=False
                    )
                if number:
                    speeds[seen].append(float(run.samples_per_second or 0))
    ratios = [one / two for one, two in zip(speeds[True], speeds[False], strict=True)]
    low, high = median_interval(ratios)
    return [
        {
            "fits": pairs,
            "alone, samples/s": statistics.median(speeds[False]),
            "two viewers, samples/s": statistics.median(speeds[True]),
            "ratio": statistics.median(ratios),
            "interval": f"{low:.3f} to {high:.3f}",
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--losses", type=int, default=1000)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--view", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        return view(options.view)
    title = f"A list of {options.runs:,} stored runs with {options.losses:,} losses each"
    show(title, list_rows(options.runs, options.losses, options.tries), tries=options.tries)
    show("What two viewers cost a fit (ddp, 2 ranks)", cost_rows(options.pairs, options.steps), steps=options.steps)
    return None


if __name__ == "__main__":
    main()
