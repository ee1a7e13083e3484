"""Data over ranks: each its own part, in a new order in every pass, and random numbers of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...bridges.scripts.witnessed import Seen
from .script_symptom import Symptom, trained_passes, updates

SHARED = 0.5  # of a rank's samples that another rank has too: more than the padding of a sampler
SHARD = "give each rank its part: DataLoader(..., sampler=DistributedSampler(dataset))"
GENERATORS = ("torch", "numpy", "random")


def data_symptoms(seen: Seen, alone: Seen | None) -> Iterator[Symptom]:
    """`alone`: the script on one rank, where that ran."""
    found = _not_sharded(seen, alone)
    if found is not None:
        yield found
    else:
        yield from _same_rows(seen)
    yield from _same_numbers(seen)
    yield from _same_order(seen)


def _not_sharded(seen: Seen, alone: Seen | None) -> Symptom | None:
    """Every rank goes through the whole of the same data, or through the same part."""
    passes = [trained_passes(facts) for facts in seen.ranks]
    if not all(passes):
        return None
    first = [one[0] for one in passes]
    if first[0]["print"] is None or any(one["print"] != first[0]["print"] for one in first):
        return None
    own = first[0]
    before = trained_passes(alone.ranks[0])[:1] if alone is not None else []
    whole = own["sampler_length"] is not None and own["sampler_length"] == own["dataset_length"]
    if before and own["sampler_length"] is not None:
        whole = (
            before[0]["sampler_length"] == own["sampler_length"]
            and own["dataset_length"] == before[0]["dataset_length"]
        )
    alike = _shared([one["first"] for one in first]) > SHARED
    if not whole and not alike:
        return None
    reads = f"all {own['sampler_length']} samples" if whole else "the same part of the data"
    return Symptom(
        "sampler",
        f"step 1: every rank reads {reads} ({own['sampler']}), so {len(first)} ranks train on each sample "
        f"{len(first)} times per epoch",
        SHARD,
        "with a DistributedSampler put in from outside, ranks read different samples",
        1,
        None,
        {"shard": seen.ranks[0]["trained"][:1]},
        lambda trial: _shared([trained_passes(facts)[0]["first"] for facts in trial.ranks]) < SHARED,
    )


def _shared(lists: list[list[Any]]) -> float:
    """The largest part of rank 0's list that another rank has too."""
    first = set(lists[0])
    return max((len(first & set(other)) / max(1, len(first)) for other in lists[1:]), default=0.0)


def _alike_rows(seen: Seen) -> float:
    """The largest part of rank 0's samples that another rank has at the same place of the same update."""
    pairs = [[0, 0] for _ in seen.ranks]
    for _, told in updates(seen):
        first = _batch(told[0])
        for rank, one in enumerate(told[1:], 1):
            both = list(zip(first, _batch(one), strict=False))
            pairs[rank][0] += sum(mine == other for mine, other in both)
            pairs[rank][1] += len(both)
    return max(alike / max(1, count) for alike, count in pairs[1:])


def _same_rows(seen: Seen) -> Iterator[Symptom]:
    """The same samples on all ranks, without a sampler that would say why: drawn alike, or read alike."""
    rows = {row for made in seen.ranks[0]["updates"] for row in _batch(made)}
    if len(rows) < 2 or _alike_rows(seen) <= SHARED:
        return
    step = next(
        (number + 1 for number, told in updates(seen) if told[0]["passes"][:1] and _batch(told[0]) == _batch(told[1])),
        1,
    )
    same = f"step {step}: all ranks train on the same samples"
    yield Symptom(
        "seeds",
        f"{same}: they draw them with the same seed",
        "seed each rank differently (torch.manual_seed(seed + rank)) before it draws",
        "seeded differently from outside, ranks draw different samples",
        step,
        None,
        {"reseed": True},
        lambda trial: _alike_rows(trial) < SHARED,
    )
    trained = seen.ranks[0]["trained"][:1]
    yield Symptom(
        "sampler",
        f"{same}: the data is not divided among ranks",
        "let each rank read its own part: every Nth sample from its rank on"
        if not trained
        else SHARD + ", or skip the other ranks' samples in an IterableDataset",
        "with batches dealt out in turn from outside, ranks train on different samples",
        step,
        None,
        {"take_turns": trained} if trained else None,
        lambda trial: _alike_rows(trial) < SHARED,
    )


def _batch(told: dict[str, Any]) -> list[str]:
    return [row for one in told["passes"] for row in one["rows"]]


def _same_numbers(seen: Seen) -> Iterator[Symptom]:
    found = _alike(seen)
    if found is None:
        return
    step, kind = found
    what = "dropout" if seen.ranks[0]["dropout"] else "noise or augmentation"
    call = {"torch": "torch.manual_seed(seed + rank)", "numpy": "numpy.random.seed(seed + rank)"}
    yield Symptom(
        "seeds",
        f"step {step}: all ranks draw the same random numbers ({kind}: {what}), because they have the same seed",
        f"after the model is made, seed each rank differently: {call.get(kind, 'random.seed(seed + rank)')}",
        "seeded differently from outside, ranks draw different numbers",
        step,
        None,
        {"reseed": True},
        lambda trial: _alike(trial) is None,
    )


def _alike(seen: Seen) -> tuple[int, str] | None:
    """The first step in which all ranks drew from a generator in the same state, and which generator."""
    for number, told in updates(seen):
        for passes in zip(*(one["passes"] for one in told), strict=False):
            random = [one.get("random") for one in passes]
            if None in random:
                continue
            for at, kind in enumerate(GENERATORS):
                if all(one["drew"][at] for one in random) and len({one["start"][at] for one in random}) == 1:
                    return number + 1, kind
    return None


def _same_order(seen: Seen) -> Iterator[Symptom]:
    passes = trained_passes(seen.ranks[0])
    if not passes or not passes[0]["sets_epoch"] or passes[0]["shuffle"] is False or not _repeats(seen):
        return
    yield Symptom(
        "set_epoch",
        f"step {_second_pass(seen)}: the second pass over the data has the order of the first "
        f"({passes[0]['sampler']} at epoch {passes[1]['epoch']} both times)",
        "call sampler.set_epoch(epoch) at the start of every epoch",
        "with set_epoch called from outside, every pass has an order of its own",
        _second_pass(seen),
        None,
        {"set_epoch": seen.ranks[0]["trained"][:1]},
        lambda trial: not _repeats(trial),
        hurries=True,
    )


def _repeats(seen: Seen) -> bool:
    """Two passes in one order, which is not simply that of the data."""
    passes = trained_passes(seen.ranks[0])
    if len(passes) < 2:
        return False
    one, other = passes[0]["first"], passes[1]["first"]
    length = min(len(one), len(other))
    return length > 2 and one[:length] == other[:length] and one != sorted(one)


def _second_pass(seen: Seen) -> int:
    facts = seen.ranks[0]
    length = trained_passes(facts)[0]["length"] or 0
    return int(length // max(1, facts["group_size"])) + 1
