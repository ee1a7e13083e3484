"""The timelines of strategies, in the words of timeline.py: one generator for each way of dividing a step."""

from __future__ import annotations

from collections.abc import Iterator

from ..timeline import Act, Await, Costs, Idle, Launch, Meet, Receive, Release, Send, Settle, Spare, Take, Work
from .pipeline_schedules import Forward, plan, split_sizes
from .stage_links import HEADER

BEFORE, AFTER = ("load", "transfer", "augment"), ("update", "other")


def _phases(part: dict[str, float], names: tuple[str, ...]) -> Iterator[Act]:
    for name in names:
        if name == "load":
            yield Idle(name, part.get("idle", 0.0))
        yield Work(name, part.get(name, 0.0))


def gradient(costs: Costs, samples: float) -> Iterator[Act]:
    """Everything of an ordinary step before its update."""
    yield from _phases(costs.part(samples), (*BEFORE, "forward", "backward"))


def alone(costs: Costs, process: int, step: int, *, ranks: int = 1) -> Iterator[Act]:
    """Ranks that never wait for each other: the whole step is their own."""
    samples = costs.batch_size / ranks
    yield from gradient(costs, samples)
    yield from _phases(costs.part(samples), AFTER)


def summed_in_buckets(
    costs: Costs, process: int, step: int, *, ranks: int, bucket: float, shrink: float = 1.0
) -> Iterator[Act]:
    """Buckets of gradients are summed as soon as backward has filled them; the last has nothing to hide behind."""
    part = costs.part(costs.batch_size / ranks)
    buckets = max(1, round(costs.trained_bytes / bucket))
    size = shrink * costs.trained_bytes / buckets
    yield from _phases(part, (*BEFORE, "forward"))
    for number in range(buckets):
        yield Work("backward", part["backward"] / buckets)
        if ranks > 1 and number < buckets - 1:
            yield Launch(f"bucket {number}", ranks, costs.all_reduce(size, ranks))
    if ranks > 1:
        yield Meet("last bucket", ranks, costs.all_reduce(size, ranks))
        for number in range(buckets - 1):
            yield Await(f"bucket {number}")
    yield from _phases(part, AFTER)


def sharded(costs: Costs, process: int, step: int, *, ranks: int) -> Iterator[Act]:
    """Each unit is gathered before its passes, and its gradient scattered after; a rank updates its shard."""
    part, units = costs.part(costs.batch_size / ranks), max(1, costs.units)
    yield from _phases(part, BEFORE)
    for unit in range(units):
        yield Meet(f"gather {unit}", ranks, costs.gather(costs.weight_bytes / units, ranks))
        yield Work("forward", part["forward"] / units)
    for unit in reversed(range(units)):
        yield Meet(f"gather again {unit}", ranks, costs.gather(costs.weight_bytes / units, ranks))
        yield Work("backward", part["backward"] / units)
        yield Meet(f"scatter {unit}", ranks, costs.gather(costs.trained_bytes / units, ranks))
    yield Work("update", part["update"] / ranks)
    yield Work("other", part["other"])


def averaged(costs: Costs, process: int, step: int, *, ranks: int, period: int) -> Iterator[Act]:
    """Ranks train apart; every so many steps their weights are summed."""
    yield from alone(costs, process, step, ranks=ranks)
    if ranks > 1 and (step + 1) % period == 0:
        yield Meet("average", ranks, costs.all_reduce(costs.weight_bytes, ranks))


def in_turns(costs: Costs, process: int, step: int, *, ranks: int) -> Iterator[Act]:
    """One rank after the other adds its gradient to the sum, which takes at least as long as an update with it; the first
    makes the update; all go on together. A turn is handed on as an empty message is."""
    part = costs.part(costs.batch_size / ranks)
    add = max(costs.copy(costs.trained_bytes), part["update"])
    yield from gradient(costs, costs.batch_size / ranks)
    if process:
        yield Receive(f"turn {process}")
    yield Work("communication", add)
    if process + 1 < ranks:
        yield Send(f"turn {process + 1}", costs.message(0.0, process, process + 1))
    elif ranks > 1:
        yield Send("all added", costs.message(0.0, process, 0))
    if process == 0:
        if ranks > 1:
            yield Receive("all added")
        yield Work("update", part["update"])
    yield Meet("go on", ranks, costs.message(0.0, 0, process))
    yield Work("other", part["other"])


def under_a_lock(costs: Costs, process: int, step: int, *, ranks: int, whole: bool) -> Iterator[Act]:
    """Each rank's update by itself, one at a time; or its whole step."""
    part = costs.part(costs.batch_size / ranks)
    yield from _phases(part, BEFORE)
    if whole:
        yield Take("weights")
    yield from _phases(part, ("forward", "backward"))
    if not whole:
        yield Take("weights")
    yield Work("update", part["update"])
    yield Release("weights")
    yield Work("other", part["other"])


def served(costs: Costs, process: int, step: int, *, ranks: int, servers: int, sync: bool) -> Iterator[Act]:
    """Servers take the gradients and make the updates: once all have come, or each as it comes."""
    part = costs.part(costs.batch_size / ranks)
    update = part["update"] / servers
    if process >= ranks:
        if sync:
            yield Meet("push", ranks + servers, 0.0)
            taking = costs.copy(costs.trained_bytes / servers) + costs.handling(0.0)
            yield Work("update", ranks * taking + update)
            yield Meet("pull", ranks + servers, 0.0)
        return
    yield from gradient(costs, costs.batch_size / ranks)
    if sync:
        yield Meet("push", ranks + servers, costs.message(costs.trained_bytes, process, ranks))
        yield Meet("pull", ranks + servers, costs.message(0.0, ranks, process))
    else:
        for server in range(servers):
            yield Take(f"server {server}")
            yield Work("update", update)
            yield Release(f"server {server}")
        yield Work("communication", costs.copy(costs.trained_bytes))
    yield Work("other", part["other"])


def in_threads(costs: Costs, process: int, step: int, *, ranks: int, gathers: bool) -> Iterator[Act]:
    """Replicas are threads: each operation is started under the one lock of the interpreter. The first does the rest."""
    part, slices = costs.part(costs.batch_size / ranks), 8
    whole = costs.part(costs.batch_size)
    first = process == 0
    if first:
        yield from _phases(whole, BEFORE)  # one process reads for all
        yield Work("communication", (ranks - 1) * costs.copy(costs.weight_bytes))
    yield Meet("begin", ranks, 0.0)
    held = min(0.9, costs.overhead() / max(1e-9, part["forward"] + part["backward"]))
    for phase in ("forward", "backward"):
        for _ in range(slices):
            yield Take("interpreter")
            yield Work(phase, held * part[phase] / slices)
            yield Release("interpreter")
            yield Work(phase, (1 - held) * part[phase] / slices)
        if gathers:
            yield Meet(f"{phase} is done", ranks, 0.0)
    yield Meet("end", ranks, 0.0)
    if first:
        yield Work("communication", (ranks - 1) * costs.copy(costs.trained_bytes))
        yield from _phases(part, AFTER)


def _handling(costs: Costs, size: float) -> float:
    """Between stages, a header goes ahead of every message (stage_links.py)."""
    return costs.handling(8 * HEADER) + costs.handling(size)


def _sent(costs: Costs, name: str, size: float, process: int, to: int) -> Iterator[Act]:
    yield Work("communication", _handling(costs, size))
    yield Send(name, max(0.0, costs.message(size, process, to) - 2 * costs.handling(size)))


def _received(costs: Costs, name: str, size: float) -> Iterator[Act]:
    yield Receive(name)
    yield Work("communication", _handling(costs, size))


def staged(
    costs: Costs,
    process: int,
    step: int,
    *,
    ranks: int,
    replicas: int = 1,
    schedule: str = "gpipe",
    chunks: int = 1,
    split_size: int | None = None,
    stages_per_rank: int = 1,
    late: bool = False,
) -> Iterator[Act]:
    """The schedule that the ranks of a cut model run, with the costs of its stages; replicas sum their gradients."""
    peers = ranks // replicas
    replica, place = divmod(process, peers)
    samples = max(1, round(costs.batch_size / replicas))
    sizes = split_sizes(samples, None if split_size else chunks, split_size)
    part, stages = costs.part(costs.batch_size / replicas), costs.stages
    mine = [stage for number, stage in enumerate(stages) if number % peers == place]
    if place == 0 or place == (len(stages) - 1) % peers:
        yield from _phases(part, BEFORE)
    for action in plan(schedule, place, peers, len(sizes), stages_per_rank):
        chunk, number = action
        passes, stage = costs.part(sizes[chunk]), stages[number]
        key, bytes_on = f"{replica}/{chunk}", stage.sends * sizes[chunk]
        if isinstance(action, Forward):
            if number:
                yield from _received(costs, f"{key} to {number}", stages[number - 1].sends * sizes[chunk])
            yield Work("forward", passes["forward"] * stage.forward)
            if number + 1 < len(stages):
                to = process - place + (number + 1) % peers
                yield from _sent(costs, f"{key} to {number + 1}", bytes_on, process, to)
        else:
            if number + 1 < len(stages):
                yield from _received(costs, f"{key} back to {number}", bytes_on)
            backward = passes["backward"] * stage.backward
            yield Work("backward", backward / 2 if late else backward)
            if late:
                yield Spare("backward", backward / 2)
            if number:
                back, to = stages[number - 1].sends * sizes[chunk], process - place + (number - 1) % peers
                yield from _sent(costs, f"{key} back to {number - 1}", back, process, to)
    yield Settle()
    share = sum(stage.parameters for stage in mine)
    if replicas > 1:
        yield Meet(f"sum of {place}", replicas, costs.all_reduce(share * costs.trained_bytes, replicas))
    yield Work("update", part["update"] * share)
    yield Work("other", part["other"])
