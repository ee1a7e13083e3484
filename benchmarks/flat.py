"""Aim: nothing grows faster than what it counts. A rank costs the same whether it is one of 2 or of 64, a step the same
whether it is the first or the millionth, and a thousand stored runs are listed in under a second.

    python benchmarks/flat.py ranks [--quick] [--rounds 3] [--against SRC]     start-up, memory, barriers and the caller, by ranks
    python benchmarks/flat.py steps [--quick] [--against SRC]     memory, files and the end of a fit, by steps
    python benchmarks/flat.py runs  [--quick] [--against SRC]     the list of stored runs, and the page of a folder of them

Every figure comes from a process of its own. `--against` names the `src` folder of another version: its processes take
turns with this one's, and its rows stand beside them.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
OURS = HERE.parents[1] / "src"
MiB = 2**20


# ---------------------------------------------------------------- what is trained


def tiny(batch_size: int, steps_per_epoch: int, epochs: int) -> Any:
    """A model of a few numbers: what a step costs beside it is what is measured."""
    import torch

    import manyhands as mh

    inputs = torch.randn(batch_size * steps_per_epoch, 4, generator=torch.Generator().manual_seed(0))
    return mh.Task(
        model=lambda: torch.nn.Linear(4, 2),
        train=(inputs, (inputs[:, 0] > 0).long()),
        loss=torch.nn.functional.cross_entropy,
        optimizer=functools.partial(torch.optim.SGD, lr=0.01),
        batch_size=batch_size,
        epochs=epochs,
        name="tiny",
    )


# ---------------------------------------------------------------- what processes hold


def held(pid: int) -> tuple[int, int] | None:
    """(PSS, USS) of a process in bytes: its share of what it shares, and what is its alone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    kib = {words[0].rstrip(":"): int(words[1]) for words in map(str.split, lines[1:]) if len(words) > 1}
    return kib.get("Pss", 0) * 1024, (kib.get("Private_Clean", 0) + kib.get("Private_Dirty", 0)) * 1024


def rank_pids() -> list[int]:
    """The processes that train for this one: children of the keeper, a child of the fork server."""
    import psutil

    try:
        servers = psutil.Process().children()
        keepers = [keeper for server in servers for keeper in server.children()]
        return [rank.pid for keeper in keepers for rank in keeper.children()]
    except psutil.NoSuchProcess:  # one of them has just ended
        return []


@contextmanager
def meanwhile(every: float, look: Callable[[], None]) -> Iterator[None]:
    """Look now and then while the block runs."""
    over = threading.Event()

    def again_and_again() -> None:
        while not over.wait(every):
            look()

    thread = threading.Thread(target=again_and_again)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def sampled(
    every: float, found: list[tuple[float, tuple[int, int], list[tuple[int, int]]]]
) -> AbstractContextManager[None]:
    """The time, what this process holds, and what each rank does."""

    def look() -> None:
        ranks = [one for pid in rank_pids() if (one := held(pid)) is not None]
        own = held(os.getpid())
        if ranks and own is not None:
            found.append((time.monotonic(), own, ranks))

    return meanwhile(every, look)


# ---------------------------------------------------------------- measurements, each in a process of its own


def barriers(ranks: int, times: int) -> tuple[float, float]:
    """Seconds of one barrier of the transport, and of a rank's CPU in it: medians over ranks."""
    from manyhands.world.launch.together import together

    def meet(rank: int) -> tuple[float, float]:
        import torch.distributed as dist

        for _ in range(20):
            dist.barrier()
        began, used = time.perf_counter(), time.process_time()
        for _ in range(times):
            dist.barrier()
        return (time.perf_counter() - began) / times, (time.process_time() - used) / times

    found = together(meet, ranks)
    return statistics.median(wall for wall, _ in found), statistics.median(cpu for _, cpu in found)


def measure_ranks(ranks: int, steps: int) -> dict[str, float]:
    """One number of ranks: the server is warm, for its import of torch is not theirs."""
    import manyhands as mh

    task = tiny(4 * ranks, steps, 1)
    fit = functools.partial(mh.fit, task, "ddp", ranks=ranks, threads=1, device="cpu", progress=False)
    fit(max_steps=2)
    began, used = time.monotonic(), time.process_time()
    run = fit()
    wall, caller = time.monotonic() - began, time.process_time() - used
    found: list[tuple[float, tuple[int, int], list[tuple[int, int]]]] = []
    with sampled(0.05, found):  # one rank is through in a fifth of a second
        fit()
    fullest = max((held for _, _, held in found), key=lambda held: sum(pss for pss, _ in held))
    phases = run.phases_ms
    barrier, barrier_cpu = barriers(ranks, 200) if ranks > 1 else (0.0, 0.0)
    return {
        "start-up s": run.startup_seconds,
        "end s": wall - run.startup_seconds - run.seconds - (run.evaluation_seconds or 0) - (run.pause_seconds or 0),
        "PSS per rank MiB": statistics.mean(pss for pss, _ in fullest) / MiB,
        "USS per rank MiB": statistics.mean(uss for _, uss in fullest) / MiB,
        "step ms": 1000 * run.seconds / run.steps,
        "communication ms": phases["communication"],
        "wait ms": phases["wait"],
        "barrier us": 1e6 * barrier,
        "barrier CPU us per rank": 1e6 * barrier_cpu,
        "caller CPU %": 100 * caller / wall,
    }


def measure_steps(strategy: str, ranks: int, steps: int, per_epoch: int, place: str) -> dict[str, float]:
    """One long fit in a folder, and what is left of it."""
    import manyhands as mh
    from manyhands.training.checkpoints.checkpoint import published

    folder = Path(place) / "run"
    task = tiny(2 * ranks, min(per_epoch, steps), -(-steps // per_epoch))
    fit = functools.partial(mh.fit, task, strategy, ranks=ranks, threads=1, device="cpu", progress=False)
    fit(max_steps=2)
    found: list[tuple[float, tuple[int, int], list[tuple[int, int]]]] = []
    live: list[int] = []
    began = time.monotonic()
    with sampled(0.25, found), live_sizes(folder / "live.json", live):
        run = fit(max_steps=steps, run_dir=folder, checkpoint_every=steps // 2)
    back = time.monotonic()
    first = began + run.startup_seconds
    last = (
        first + run.seconds + (run.evaluation_seconds or 0) + (run.pause_seconds or 0) + (run.checkpoint_seconds or 0)
    )
    in_steps = [sample for sample in found if first + 0.1 * (last - first) < sample[0] < last] or found
    a, b = in_steps[0], in_steps[-1]
    grown_steps = max(1.0, (b[0] - a[0]) / (last - first) * steps)
    [checkpoint, *_] = published(folder / "checkpoints")
    tries = [timed(lambda: mh.Run.load(folder, weights=False)) for _ in range(3)]
    page = Path(place) / "report.html"
    return {
        "step us": 1e6 * run.seconds / run.steps,
        "caller B/step": (b[1][1] - a[1][1]) / grown_steps,
        "rank B/step": statistics.mean(y - x for (_, x), (_, y) in zip(a[2], b[2], strict=True)) / grown_steps,
        "caller peak MiB": max(own[1] for _, own, _ in found) / MiB,
        "rank peak MiB": max(uss for _, _, held in found for _, uss in held) / MiB,
        "end s": back - last,
        "checkpoint s": run.checkpoint_seconds,
        "checkpoint MB": sum(file.stat().st_size for file in checkpoint.iterdir()) / 1e6,
        "live file kB": max(live, default=0) / 1e3,
        "run.json MB": (folder / "run.json").stat().st_size / 1e6,
        "load s": statistics.median(tries),
        "report s": timed(lambda: mh.report(folder, page)),
        "report.html MB": page.stat().st_size / 1e6,
    }


def live_sizes(file: Path, found: list[int]) -> AbstractContextManager[None]:
    def look() -> None:
        with suppress(OSError):
            found.append(file.stat().st_size)

    return meanwhile(0.25, look)


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


# ---------------------------------------------------------------- both sides in turn


def side_of(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source)}


def measured(source: Path, *words: object) -> dict[str, float]:
    command = [sys.executable, str(HERE), *map(str, words)]
    done = subprocess.run(command, env=side_of(source), stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def in_turn(
    sources: dict[str, Path], what: list[tuple[str, tuple[object, ...]]], rounds: int
) -> Iterator[dict[str, Any]]:
    """A row per measurement and side: medians over the rounds, the range where there are several."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(rounds):
        for name, words in what:
            for side in random.Random(number).sample(list(sources), len(sources)):
                found.setdefault((name, side), []).append(measured(sources[side], *words))
                print(name, side, found[name, side][-1], file=sys.stderr, flush=True)
    for name, _ in what:
        for side in sources:
            rows = found[name, side]
            yield {
                "": name,
                **({"version": side} if len(sources) > 1 else {}),
                **{key: statistics.median(row[key] for row in rows) for key in rows[0]},
                "_all": rows,
            }


def show_rows(title: str, rows: list[dict[str, Any]], columns: list[str], **facts: Any) -> None:
    """The columns of a table; all figures of all rounds are in the JSON."""
    sys.path.insert(0, str(HERE.parent))
    from tables import show

    heads = ["", *(["version"] if "version" in rows[0] else []), *columns]
    show(title, [{head: row[head] for head in heads} for row in rows], **facts, rounds=[row["_all"] for row in rows])


def ranks_table(sources: dict[str, Path], quick: bool, rounds: int) -> None:
    counts = [1, 2, 4, 8] if quick else [1, 2, 4, 8, 16, 32, 64]
    steps, rounds = (50, 1) if quick else (150, rounds)
    rows = list(in_turn(sources, [(str(count), ("measure-ranks", count, steps)) for count in counts], rounds))
    for row in rows:
        count = int(row[""])
        row["ranks"], row["start-up ms per rank"] = count, 1000 * row["start-up s"] / count
        row["step ms per rank"], row["barrier us per rank"] = row["step ms"] / count, row["barrier us"] / count
        row["share of step %"] = 100 * row["barrier us"] / 1000 / row["step ms"]
    show_rows(
        "Ranks: starting and ending",
        rows,
        ["start-up s", "start-up ms per rank", "end s", "PSS per rank MiB", "USS per rank MiB"],
    )
    show_rows(
        "Ranks: steps and barriers",
        rows,
        ["step ms", "step ms per rank", "barrier us", "barrier us per rank", "barrier CPU us per rank", "caller CPU %"],
        steps=steps,
    )


def steps_table(sources: dict[str, Path], quick: bool, only: str | None) -> None:
    million, few = (100_000, 20_000) if quick else (1_000_000, 100_000)
    cases = {
        "single, tenth": ("single", 1, million // 10, 1000),
        "single": ("single", 1, million, 1000),
        "one epoch": ("single", 1, million, million),
        "short epochs": ("single", 1, few, 10),
        "ddp": ("ddp", 2, few, 1000),
    }
    chosen = {name: case for name, case in cases.items() if only in (None, name)}
    rows = list(in_turn(sources, [(name, ("measure-steps", *case)) for name, case in chosen.items()], 1))
    show_rows(
        "Steps: memory",
        rows,
        ["step us", "caller B/step", "rank B/step", "caller peak MiB", "rank peak MiB", "live file kB"],
    )
    show_rows(
        "Steps: what is left",
        rows,
        ["end s", "run.json MB", "load s", "report s", "report.html MB", "checkpoint s", "checkpoint MB"],
    )


def runs_table(sources: dict[str, Path], quick: bool) -> None:
    count, losses, tries = (100, 1000, 2) if quick else (1000, 1000, 7)
    sys.path.insert(0, str(HERE.parent))
    from live_page import write_runs

    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        folders = {f"{count:,} runs": 0, f"{count:,} runs of {losses:,} losses": losses}
        for name, length in folders.items():
            (Path(place) / name).mkdir()
            write_runs(Path(place) / name, count, length)
        page = Path(place) / "report.html"
        for number in range(tries + 1):  # the first warms up
            for name in folders:
                for side in random.Random(number).sample(list(sources), len(sources)):
                    commands = {"runs": ["runs"], "report": ["report", "-o", str(page)]}
                    for command, words in commands.items():
                        if command == "report" and number > 3:
                            continue
                        whole = [sys.executable, "-m", "manyhands", *words, str(Path(place) / name)]
                        began = time.perf_counter()
                        subprocess.run(whole, env=side_of(sources[side]), stdout=subprocess.DEVNULL, check=True)
                        found.setdefault((f"{command}: {name}", side), []).append(time.perf_counter() - began)
                    found.setdefault((f"page: {name}", side), []).append(page.stat().st_size / 1e6)
    rows = [
        {
            "": name,
            **({"version": side} if len(sources) > 1 else {}),
            "median": statistics.median(values[1:]),
            "range": f"{min(values[1:]):.2f} .. {max(values[1:]):.2f}",
            "unit": "MB" if name.startswith("page") else "s",
        }
        for (name, side), values in sorted(found.items())
    ]
    from tables import show

    show("Stored runs, prompt to prompt", rows, tries=tries)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["ranks", "steps", "runs", "measure-ranks", "measure-steps"])
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, metavar="SRC")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    words = options.words
    if options.what == "measure-ranks":
        print(json.dumps(measure_ranks(int(words[0]), int(words[1]))))
        return
    if options.what == "measure-steps":
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(measure_steps(words[0], *map(int, words[1:]), place)))  # type: ignore[arg-type, call-arg]
        return
    sources = {"before": options.against.resolve()} if options.against else {}
    sources["after" if sources else "this"] = OURS
    if options.what == "ranks":
        ranks_table(sources, options.quick, options.rounds)
    elif options.what == "steps":
        steps_table(sources, options.quick, options.only)
    else:
        runs_table(sources, options.quick)


if __name__ == "__main__":
    main()
