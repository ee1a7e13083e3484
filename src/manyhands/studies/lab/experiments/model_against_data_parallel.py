"""Model parallelism against data parallelism: what one batch at a time costs, and what a pipeline and a better cut win back.

    model parallel   one rank computes while the others wait: the time of one rank, however many there are
    pipeline         the same cut with four chunks of the batch under way: ranks wait at its two ends alone
    data parallel    every rank computes its share of the batch, then the gradients are summed

By hand means equal numbers of blocks, which is how the published model was cut; by cost, equal shares of measured time.
A rank is a GPU where there are several, else an equal share of the cores. BatchNorm sees the whole batch under model
parallelism, a rank's share of it under data parallelism and one chunk in a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....record.run import Run
from ..experiment import Column, Curve, Experiment, Line, Part, Scale, Verdict
from ..table import Table, by_epoch, over

BLOCKS = 21  # of MobileNetV2
SAME_ACCURACY = 0.02  # between the published ones there are 0.005
DATA, MODEL, PIPELINE = "data parallel", "model parallel", "pipeline"
HAND, COST = "by hand", "by cost"
PUBLISHED = {
    DATA: {"batch": 0.396, "gain": 1.616 / 0.396, "accuracy": 0.938},
    MODEL: {"batch": 1.616, "gain": 1.0, "accuracy": 0.933},
}


def parts(scale: Scale) -> Sequence[Part]:
    ranks = rank_counts(scale)
    share = max(1, scale.cores // ranks[-1])
    if scale.gpus > 1:
        alone = [part("single", "single", scale)]
    else:
        alone = [part(f"single, {count} of {scale.cores} cores", "single", scale, threads=count)
                 for count in sorted({share, scale.cores})]  # fmt: skip
    return [*alone, *(row for count in ranks for row in side_by_side(count, count == ranks[-1], scale))]


def side_by_side(ranks: int, most: bool, scale: Scale) -> list[Part]:
    """Data parallel, then each cut of the model with one batch at a time and as a pipeline."""
    by_hand = "+".join(str(BLOCKS // ranks + (stage < BLOCKS % ranks)) for stage in range(ranks))
    rows = [
        (DATA, "", "ddp"),
        (MODEL, HAND, f"model_parallel:balance={by_hand}"),
        (MODEL, COST, "model_parallel:balance=time"),
        (PIPELINE, HAND, f"pipeline:balance={by_hand}"),
        (PIPELINE, COST, "pipeline:balance=time"),
    ]
    return [
        part(label(kind, ranks, cut), strategy, scale, known(kind, scale) if most and cut != COST else {}, ranks=ranks)
        for kind, cut, strategy in rows
    ]


def part(label: str, strategy: str, scale: Scale, published: Mapping[str, float] | None = None, **fit: Any) -> Part:
    """A quick fit has a narrow model and small batches; without GPUs a whole one has the model, but not all epochs."""
    several = scale.gpus > 1
    samples = 512 if scale.quick else None if several else 10_240
    return Part(
        label,
        f"cifar10:width={0.25 if scale.quick else 1}",
        strategy,
        {"device": "cuda" if several else "cpu", "epochs": 1 if scale.quick else 60 if several else 3, **fit},
        batch_size=64 if scale.quick else 512,  # and with it the published rate of 0.4
        train_samples=samples,
        test_samples=128 if scale.quick else None if several else 2_000,
        published=published or {},
    )


def known(kind: str, scale: Scale) -> dict[str, float]:
    """A narrow model and a short training have a time per batch and an accuracy of their own."""
    figures = PUBLISHED.get(kind, {})
    return {key: value for key, value in figures.items() if key == "gain" or not scale.quick}


def rank_counts(scale: Scale) -> list[int]:
    there = scale.gpus if scale.gpus > 1 else 2 if scale.quick else scale.cores
    return [2, 4] if there >= 4 else [2]


def label(kind: str, ranks: int, cut: str = "") -> str:
    return f"{kind}, {ranks} ranks{', ' if cut else ''}{cut}"


def batch_seconds(run: Run, others: Mapping[str, Run]) -> float | None:
    return run.step_ms["median"] / 1000 if run.step_ms else None


def gain(run: Run, others: Mapping[str, Run]) -> float | None:
    """Against one batch at a time, cut by hand, on as many ranks (a single process: on the most)."""
    naive = [other for name, other in others.items() if name.startswith(MODEL) and name.endswith(HAND)]
    beside = [other for other in naive if other.ranks == run.ranks] or naive[-1:]
    mine, its = batch_seconds(run, others), batch_seconds(beside[0], others) if beside else None
    return its / mine if mine and its else None


def waiting(run: Run, others: Mapping[str, Run]) -> float | None:
    phases = {phase: ms for phase, ms in (run.phases_ms or {}).items() if ms is not None}
    return phases.get("wait", 0.0) / sum(phases.values()) if sum(phases.values()) else None


def judge(table: Table) -> Verdict:
    ranks = rank_counts(table.scale)[-1]
    naive, spread = label(MODEL, ranks, HAND), label(DATA, ranks)
    slower = table.ratio("batch", naive, spread)
    if slower is None:
        return Verdict(None, "Nothing that could be compared.", f"{naive} or {spread} did not run.")
    half_way = (1 + ranks) / 2  # between no gain and as many times as there are ranks
    holds = True if slower.low > half_way else False if slower.high <= half_way else None
    if table.scale.gpus < 2 and table.scale.cores < ranks:
        holds = None
    apart = accuracy_apart(table, naive, spread)
    if holds and apart is not None and apart > SAME_ACCURACY:
        holds = False
    measured = (
        f"Cut by hand, model parallelism took {table.figure(naive, 'batch'):.3f} s per batch and data parallelism "
        f"{table.figure(spread, 'batch'):.3f} s, on {ranks} ranks: {slower.middle:.1f}x as long ({slower.low:.1f} to "
        f"{slower.high:.1f}). {others(table, ranks)}"
    )
    return Verdict(holds, measured, reason(table, holds, ranks, apart))


def accuracy_apart(table: Table, one: str, other: str) -> float | None:
    """How far apart the accuracies of whole trainings are; after a few steps they say nothing."""
    if table.scale.quick or table.scale.gpus < 2:
        return None
    first, second = table.figure(one, "accuracy"), table.figure(other, "accuracy")
    return None if first is None or second is None else abs(first - second)


def others(table: Table, ranks: int) -> str:
    """What a cut by cost and a pipeline make of the gap between model and data parallelism."""
    naive, least = table.figure(label(MODEL, ranks, HAND), "batch"), table.figure(label(DATA, ranks), "batch")
    found = []
    for kind, cut in ((MODEL, COST), (PIPELINE, HAND), (PIPELINE, COST)):
        taken = table.figure(label(kind, ranks, cut), "batch")
        if taken is not None and naive is not None and least is not None:
            share = (naive - taken) / (naive - least) if naive > least else None
            closed = "" if share is None else "slower still" if share < 0 else f"{share:.0%} of the gap closed"
            found.append(f"{kind} cut {cut} {taken:.3f} s{closed and f' ({closed})'}")
    return f"Beside them: {'; '.join(found)}." if found else ""


def reason(table: Table, holds: bool | None, ranks: int, apart: float | None) -> str:
    if table.scale.gpus < 2 and table.scale.cores < ranks:
        return f"{ranks} ranks share {table.scale.cores} core, so none can work while another does."
    idle = table.figure(label(MODEL, ranks, HAND), "waiting")
    waited = "" if idle is None else f"; ranks of the cut model spent {idle:.0%} of a step waiting"
    most = f"{ranks} ranks can gain at most {ranks}x (published: 4 devices, 4.1x)"
    if apart is not None and apart > SAME_ACCURACY:
        return f"the accuracies are {100 * apart:.1f} points apart."
    same = "" if apart is not None else " Accuracy is not judged: it takes whole trainings, on several GPUs."
    if holds is None:
        return f"data parallelism gained about half of what is possible, more with one seed than with another; {most}{waited}.{same}"
    if holds:
        return f"with one batch at a time one rank works and the others wait; {most}{waited}.{same}"
    return f"data parallelism gained less than half of what is possible; {most}{waited}.{same}"


def by_ranks(table: Table) -> list[Line]:
    """Time per batch over ranks; there is nothing to draw for a single number of them."""
    counts = rank_counts(table.scale)
    lines = []
    for kind, cut in ((DATA, ""), (MODEL, HAND), (MODEL, COST), (PIPELINE, HAND), (PIPELINE, COST)):
        rows = [(count, table[label(kind, count, cut)]) for count in counts if label(kind, count, cut) in table]
        lines.append(over(rows, "batch", f"{kind} {cut}".strip()))
        if kind in PUBLISHED and cut != COST:
            lines.append(over([(4, row) for _, row in rows], "batch", kind, published=True))
    return lines if len(counts) > 1 else []


EXPERIMENT = Experiment(
    name="model-against-data-parallel",
    title="Model against data parallelism",
    claim="Data parallelism takes a quarter of the time of model parallelism per batch (0.396 s against 1.616 s on 4 "
    "devices) at about the same accuracy (93.8 % and 93.3 %).",
    source="CIFAR-10, MobileNetV2, batch 512, rate 0.4, 4 GPUs, cut by hand, one batch at a time",
    parts=parts,
    columns=(
        Column("batch", "s per batch", batch_seconds, ".3f"),
        Column("gain", "x faster", gain),
        Column("waiting", "waiting", waiting, ".0%"),
        Column("accuracy", "accuracy", lambda run, others: (run.test or {}).get("accuracy"), ".1%"),
    ),
    judge=judge,
    curves=(
        Curve("Time per batch", "ranks", "seconds per batch", by_ranks),
        Curve("Test accuracy by epoch", "epoch", "test accuracy, %", by_epoch),
    ),
    seeds=2,
    quick_seeds=2,
    takes=("2 min", "hours without several GPUs"),
    quick_note="2 ranks, a quarter of the width, 8 batches of 64 instead of whole trainings at 512",
)
