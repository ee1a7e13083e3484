"""Two hosts with two ranks each over a slow link: step time and bytes over the wire, flat, by host and compressed.

    python benchmarks/links.py --rounds 5                   (as root: the hosts are network namespaces)
    python benchmarks/links.py --quick                      whether it works at all, in a minute or two

A pair of virtual network cards joins the hosts; `tc` limits both ends to 1 Gbit/s and to 100 Mbit/s. Each rank is one
process that makes all rows in turn, round after round. A row's step time is the mean over a stretch of steps (some rows
communicate in one step of eight), its figure the median over rounds. Bytes are those of both directions at host A's card
(/proc/net/dev) over the same steps, headers included; beside them what ranks handed over in these steps, as the record's
`communication_bytes` counts it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

WARM = 4  # steps before those that count; more than `START` below
RANKS, EACH = 4, 2
RATES = {"1 Gbit/s": "1gbit", "100 Mbit/s": "100mbit"}
ROWS: dict[str, tuple[str, int]] = {  # strategy, accumulate
    "flat (gloo)": ("ddp:transport=gloo", 1),
    "by host": ("ddp:transport=hosts", 1),
    "by host, bf16": ("ddp:transport=hosts,compress=bf16", 1),
    "by host, powersgd": ("ddp:transport=hosts,compress=powersgd", 1),
    "by host, accumulate 4": ("ddp:transport=hosts", 4),
    "by host, local_sgd": ("local_sgd:period=8,transport=hosts", 1),
}
SELDOM = ("by host, accumulate 4", "by host, local_sgd")  # must count whole stretches of eight steps
MODELS = {"LeNet": "mnist", "25 M parameters": str(Path(__file__).with_name("wide_mlp.py"))}


# ---------------------------------------------------------------- the hosts


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def two_hosts(rate: str, burst: str = "256kb") -> Iterator[list[tuple[str, str, str]]]:
    """(name space, network card, address) of each."""
    number = os.getpid() % 250
    hosts = [(f"mhl{number}{end}", f"mhc{number}{end}", f"10.78.{number}.{side}") for side, end in ((1, "a"), (2, "b"))]
    try:
        for space, *_ in hosts:
            ip("netns", "add", space)
        ip("link", "add", hosts[0][1], "type", "veth", "peer", "name", hosts[1][1])
        for space, card, address in hosts:
            ip("link", "set", card, "netns", space)
            ip("-n", space, "address", "add", f"{address}/24", "dev", card)
            for device in ("lo", card):
                ip("-n", space, "link", "set", device, "up")
            limit = ["qdisc", "add", "dev", card, "root", "tbf", "rate", rate, "burst", burst, "latency", "50ms"]
            subprocess.run(["tc", "-n", space, *limit], check=True)
        yield hosts
    finally:
        for space, *_ in hosts:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def measured(rate: str, models: list[str], rounds: int, steps: int, limit: float) -> list[dict[str, Any]]:
    """What rank 0 says of every row and round, over a link of this rate."""
    with two_hosts(rate) as hosts:
        ranks = []
        plan = json.dumps({"models": models, "rounds": rounds, "steps": steps})
        for rank in range(RANKS):
            space, card, _ = hosts[rank // EACH]
            place = {"RANK": rank, "LOCAL_RANK": rank % EACH, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": EACH}
            place |= {"MASTER_ADDR": hosts[0][2], "MASTER_PORT": 29500, "GLOO_SOCKET_IFNAME": card}
            command = ["ip", "netns", "exec", space, sys.executable, __file__, "--rank", plan]
            environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        try:
            said = [process.communicate(timeout=limit)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        if failed := [rank for rank, process in enumerate(ranks) if process.returncode]:
            raise SystemExit(f"rank {failed[0]} failed over a link of {rate}")
        return [json.loads(line) for line in said[0].splitlines() if line.startswith("{")]


# ---------------------------------------------------------------- a rank


def on_the_wire(card: str) -> int:
    """Bytes that have gone through the card, in both directions."""
    with open("/proc/net/dev") as table:
        figures = next(line for line in table if line.strip().startswith(f"{card}:")).partition(":")[2].split()
    return int(figures[0]) + int(figures[8])


def there(task: str) -> str:
    """LeNet has images to train on everywhere."""
    from manyhands.data.files import DataNotFound, mnist

    if task == "mnist":
        try:
            mnist()
        except DataNotFound:
            return "glyphs"
    return task


def be_rank(plan: dict[str, Any]) -> None:
    import manyhands as mh
    from manyhands.record.clock import Clock
    from manyhands.strategies.pieces import power_sums

    power_sums.START = 2  # at once: here it need not learn
    card, ended = os.environ["GLOO_SOCKET_IFNAME"], Clock.end_step
    marks: list[tuple[int, int]] = []  # after every step: bytes on the wire, bytes handed over by this rank

    def end_step(clock: Clock) -> None:
        ended(clock)
        marks.append((on_the_wire(card), clock.bytes))

    Clock.end_step = end_step  # type: ignore[method-assign]
    for number in range(plan["rounds"]):
        for model in plan["models"]:
            for row, (strategy, accumulate) in ROWS.items():
                steps = 8 if row in SELDOM and plan["steps"] < 8 else plan["steps"]
                task = replace(mh.load_task(there(MODELS[model])), test=None)
                marks.clear()
                run = mh.fit(
                    task, strategy, ranks=RANKS, max_steps=WARM + steps, accumulate=accumulate, threads=1,
                    device="cpu", progress=False,
                )  # fmt: skip
                if os.environ["RANK"] == "0":
                    wire, said = (
                        (last - first) / steps for first, last in zip(marks[WARM - 1], marks[-1], strict=True)
                    )
                    step_ms = statistics.fmean(run.durations_ms[WARM:])
                    found = {"step_ms": step_ms, "wire": wire, "said": RANKS * said}  # all hand over as much
                    print(json.dumps({"round": number, "model": model, "row": row, **found}), flush=True)
                    print(f"{model}, {row}: {found['step_ms']:.1f} ms", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few steps over the faster link")
    parser.add_argument("--rank", help=argparse.SUPPRESS)  # what a rank is told
    options = parser.parse_args()
    if options.rank:
        be_rank(json.loads(options.rank))
        return
    from tables import show

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves no host behind
    rows = []
    for speed, rate in list(RATES.items())[: 1 if options.quick else None]:
        found: list[dict[str, Any]] = []
        for model, steps in zip(MODELS, (8, 2) if options.quick else (48, 4), strict=True):
            found += measured(rate, [model], 1 if options.quick else options.rounds, steps, 3600)
        for model in MODELS:
            flat: list[float] = []
            for row in ROWS:
                mine = [item for item in found if (item["model"], item["row"]) == (model, row)]
                times = [item["step_ms"] for item in mine]
                flat = flat or times
                rows.append(
                    {
                        "link, model, row": f"{speed}, {model}, {row}",
                        "step ms": statistics.median(times),
                        "times faster": statistics.median(a / b for a, b in zip(flat, times, strict=True)),
                        "wire KB/step": statistics.median(item["wire"] for item in mine) / 1e3,
                        "handed over KB": statistics.median(item["said"] for item in mine) / 1e3,
                    }
                )
    show("Two hosts with two ranks each over a slow link", rows, rounds=options.rounds)


if __name__ == "__main__":
    main()
