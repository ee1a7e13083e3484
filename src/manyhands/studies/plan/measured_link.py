"""The link between two hosts as it is: messages of several sizes, timed there and back, and kept in a file for forecasts.

    manyhands plan --measure-link link.json --on slurm:nodes=2     or the same command by torchrun, once on each host
    manyhands plan TASK ddp --ranks 8 --hosts 4 --link link.json

A message of b bytes is taken to need `seconds + b / bytes_per_second`. Errors count in per cent: the small messages tell the
latency, the large ones the bandwidth, and neither drowns the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ...errors import BadInput
from ...record.run import environment
from ...world.engines.choose import On, opened
from ...world.engines.engine import World
from ...world.rank import Rank
from .link import Link
from .transport import message_seconds

SCHEMA = 1
SUFFIX = ".json"
SIZES = tuple(1 << power for power in range(10, 24))  # bytes
DIGITS, PICOSECONDS = 3, 12
TURNS, ALIKE = 30, 1e-3  # errors below this share are all the same


def link_of(text: str) -> Link:
    """What `--link` says: bandwidth and latency, or the file that they were measured into."""
    return read(Path(text)) if text.endswith(SUFFIX) else Link.parse(text)


def measure(file: Path, on: On = "local") -> Link | None:
    """Time messages between a process on each of two hosts and write them to `file`; None where another process does."""
    if file.suffix != SUFFIX or not file.parent.is_dir():
        raise BadInput(
            f"a measured link is kept in a file in a folder that exists, its name ending with {SUFFIX}: {file}"
        )
    with opened(on) as engine:
        engine.check(2, "the measuring of a link", False)
        if engine.hosts != 2:
            raise BadInput(
                f"a link is measured between one process on each of two hosts (hosts: {engine.hosts}); use "
                "--on slurm:nodes=2, --on ray:nodes=2, or torchrun --nnodes 2 --nproc-per-node 1 on both"
            )
        world = World(2, 2, engine.devices("cpu", 2), 1, "gloo")
        with engine.joined(world, lambda kind, content: None, lambda kind, content: None):
            found = engine.run(_on_rank, None, lambda: None, lambda failure, board: False, None)
        if not engine.leads:
            return None
    link = fitted(found)
    content = {
        "schema": SCHEMA,
        "link": str(link),
        "messages": [{"bytes": size, "seconds": seconds} for size, seconds in found.items()],
        "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "environment": environment(),
    }
    file.write_text(json.dumps(content, indent=1) + "\n")
    return link


def _on_rank(rank: Rank) -> Mapping[int, float]:
    return {size: message_seconds(rank, torch.zeros(size // 4)) for size in SIZES}


def read(file: Path) -> Link:
    """The link in a file: its messages, each with `bytes` and `seconds`, whoever timed them."""
    try:
        content = json.loads(file.read_text())
    except OSError as problem:
        raise BadInput(f"the link {file} cannot be read ({problem.strerror})") from problem
    except ValueError as problem:
        raise BadInput(f"the link {file} is not JSON ({problem})") from problem
    messages = content.get("messages") if isinstance(content, dict) else None
    try:
        times = {float(one["bytes"]): float(one["seconds"]) for one in messages or ()}
    except (TypeError, KeyError, ValueError, AttributeError):
        times = {}
    if len(times) < 2 or not all(0 < number < math.inf for pair in times.items() for number in pair):
        raise BadInput(
            f'the link {file} needs "messages" of two sizes or more, such as {{"bytes": 1024, "seconds": 0.0001}}; '
            "`manyhands plan --measure-link` writes such a file"
        )
    return fitted(times)


def fitted(times: Mapping[Any, float]) -> Link:
    """The latency and bandwidth that come nearest to these seconds by bytes: the sum of all errors in per cent is least.

    Squares would follow the odd message that waited for a timer. So a line is drawn again and again, each point
    weighted by one over its error from the last line; that ends where the errors themselves are least.
    """
    points = [(float(size), seconds) for size, seconds in times.items()]
    weights = [1 / seconds**2 for _, seconds in points]
    latency = per_byte = 0.0
    for _ in range(TURNS):
        latency, per_byte = _line(points, weights)
        if per_byte <= 0:
            raise BadInput(
                f"larger messages took no longer than small ones ({_shown(points)}): the bandwidth is out of sight; "
                "time larger messages too"
            )
        expected = [max(latency + per_byte * size, per_byte * size) for size, _ in points]
        errors = [abs(seconds / fit - 1) for fit, (_, seconds) in zip(expected, points, strict=True)]
        weights = [1 / (fit**2 * max(error, ALIKE)) for fit, error in zip(expected, errors, strict=True)]
    return Link(_rounded(8 / per_byte) / 8, round(_rounded(max(latency, 0.0)), PICOSECONDS))


def _rounded(number: float) -> float:
    """More digits than a network repeats would only be read as if they meant something."""
    return float(f"{number:.{DIGITS}g}")


def _line(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float]:
    """Where seconds = a + b bytes begins, and how steep it is."""
    weighted, total = list(zip(weights, points, strict=True)), sum(weights)
    mean_size = sum(weight * size for weight, (size, _) in weighted) / total
    mean_seconds = sum(weight * seconds for weight, (_, seconds) in weighted) / total
    spread = sum(weight * (size - mean_size) ** 2 for weight, (size, _) in weighted)
    shared = sum(weight * (size - mean_size) * (seconds - mean_seconds) for weight, (size, seconds) in weighted)
    return mean_seconds - shared / spread * mean_size, shared / spread


def _shown(points: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{size:.0f} bytes: {seconds:.2g} s" for size, seconds in points)
