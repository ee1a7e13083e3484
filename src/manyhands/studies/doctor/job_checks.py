"""What of a task and its options would make a fit slow, fail, or learn otherwise than meant."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from ...data.process_state import seeded
from ...data.sources import TensorSource
from ...data.stream import StreamSource
from ...errors import BadInput, Refused
from ...strategies.contract import Strategy, admit, divides, processes
from ...strategies.job import Job
from ...world.devices import resolve_devices
from .check import Check, from_error, ok, problem, size, warning
from .needs import Needs

READS, READ_SECONDS = 12, 0.8  # samples that are read to see how fast they come, and for how long at most
SMALL_SHARD = 8
SLOW_SHARE = 0.25  # of a step spent reading
LITTLE = 0.001  # seconds of reading per step that are not worth a worker process
SLOW_READ = 0.01  # seconds per step, where the step itself is not known


def check_strategy(job: Job, strategy: Strategy, cut: bool = True) -> Check:
    """Whether it refuses the task; one that cuts the model finds out by cutting it."""
    try:
        admit(strategy, job, resolve_devices("auto", processes(strategy)))
        if cut:
            strategy.prepare(job)
    except (Refused, BadInput) as refusal:
        return from_error("strategy", refusal)
    return ok("strategy", f"{strategy} takes this task")


def check_batch(job: Job, strategy: Strategy) -> Check:
    size_, ranks = job.task.batch_size, strategy.ranks
    parts = ranks if strategy.traits.shards_batch else 1
    if size_ < parts:
        return warning(
            "batch",
            f"a batch of {size_} for {ranks} ranks: some have nothing to do in every step",
            f"--batch-size {8 * ranks} (and a rate to match), or --ranks {size_}",
        )
    if job.has_batchnorm and divides(strategy) and parts > 1 and size_ < SMALL_SHARD * parts:
        if job.settings.sync_batchnorm:
            return ok("batch", f"{size_} samples over {ranks} ranks, BatchNorm over all of them")
        joined = "--sync-batchnorm" if strategy.traits.joins_batchnorm else "ddp with --sync-batchnorm"
        least = size_ // parts
        words = f"BatchNorm sees {least} of {size_} samples on each of {ranks} ranks: its statistics are noise"
        fix = f"{joined}, or --batch-size {SMALL_SHARD * parts} (and a rate to match)"
        return (problem if least < 2 else warning)("batchnorm", words, fix)
    return ok("batch", f"batches of {size_}, {size_ // parts} on each rank")


@dataclass(frozen=True)
class Reading:
    """How samples come: seconds each, and whether they are spent waiting (for a disk, a network) or computing."""

    seconds: float
    waits: bool


def read_some(job: Job) -> Reading | None:
    """A few samples from all over the data; None where it lies in memory, or cannot be read by number."""
    if isinstance(job.train, TensorSource | StreamSource):
        return None
    places = torch.linspace(0, len(job.train) - 1, min(READS, len(job.train))).long().tolist()
    took, used, until = [], [], time.monotonic() + READ_SECONDS
    with seeded(job.task.seed), suppress(Exception):  # a fit reads samples before it starts, and says what is wrong
        for place in places:
            began, cpu, naps = time.perf_counter(), time.process_time(), _naps()
            job.train.gather(torch.tensor([place]))
            took.append((time.perf_counter() - began, _naps() - naps))
            used.append(time.process_time() - cpu)
            if time.monotonic() > until:
                break
    if not took:
        return None
    took, used = (took[1:] or took), (used[1:] or used)  # the first also opens what is read from
    clock, waits = sum(seconds for seconds, _ in took), sum(naps for _, naps in took) >= len(took)
    # One that never waits was only kept from its core by others: then its own time counts.
    return Reading((clock if waits else sum(used)) / len(took), waits and clock > 2 * sum(used))


def _naps() -> int:
    """How often this process has given up its core of its own accord."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def check_data(job: Job, reading: Reading | None, found: Needs, strategy: Strategy, workers: int) -> Check:
    """What reading takes of a step: a rank reads its part of a batch and then computes it, unless workers read ahead."""
    if reading is None:
        kind = "in memory" if isinstance(job.train, TensorSource) else "a stream (its pace was not measured)"
        return ok("data", f"the data is {kind}")
    parts = strategy.ranks if strategy.traits.shards_batch else 1
    part = job.task.batch_size / parts
    read = reading.seconds * part / max(1, workers)
    words = f"reading takes {reading.seconds * 1e3:.3g} ms per sample ({'waiting' if reading.waits else 'computing'})"
    if found.seconds is None or torch.cuda.is_available():
        slow, words = read > SLOW_READ, f"{words}, {read * 1e3:.0f} ms of each step"
    else:
        compute = found.seconds * part
        share = read / (read + compute)
        slow = share > SLOW_SHARE if not workers else read > compute
        words = f"{words}, computing {found.seconds * 1e3:.3g} ms"
        words += f": {share:.0%} of a step" if not workers else f" (with {workers} loader workers)"
    if not slow or read < LITTLE:
        return ok("data", words)
    return warning("data", words, "--loader-workers auto, or keep the samples in memory or on a faster disk")


def check_needs(found: Needs, strategies: Sequence[Strategy], batch_size: int, free: float) -> Check:
    """The memory of the strategy that needs most of those asked about."""
    most = max(strategies, key=lambda strategy: found.total(strategy, batch_size))
    parts = {name: count for name, count in found.parts(most, batch_size).items() if count > 1e6}
    needed = found.total(most, batch_size)
    shown = ", ".join(f"{name} {size(count)}" for name, count in sorted(parts.items(), key=lambda item: -item[1])[:3])
    words = f"{most} with {most.ranks} ranks needs about {size(needed)} of {size(free)} ({shown})"
    if needed < 0.8 * free:
        return ok("needs", words)
    activations = parts.get("activations", 0.0)
    smaller = f"--batch-size {max(1, batch_size // 2)}"
    advice = smaller if activations > needed / 2 else "fewer --ranks, or fsdp, which holds each weight once"
    return (problem if needed > free else warning)("needs", words, advice)
