"""Accumulation: several backward passes before one update against one large batch, to the last digit.

Every row makes the same updates from the same samples. The first figure is how far the weights are from those of the
large batch after one update, the second after the whole training, both relative to the largest weight of a layer. Each
epoch ends with a short batch, so the parts of its last update are unequal. What differs by rounding alone differs less
the more digits there are: the same rows in float64 show it. Two rows differ for a reason: BatchNorm, whose statistics
are those of a part, and parts that are weighted evenly although the last one is smaller, as hand-written loops do that
divide every loss by the number of parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ....record.run import Run
from ..experiment import Column, Curve, Experiment, Line, Part, Scale, Verdict
from ..running import figures
from ..table import Table, over

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ....task import Task

LARGE = 128
PARTS = (2, 4, 8)
SINGLE, DOUBLE, BATCHNORM, EVEN = "float32", "float64", "float64 with BatchNorm", "float64, parts weighted evenly"
EPSILON = {SINGLE: 2.0**-23, DOUBLE: 2.0**-52}
ROUNDINGS = 100  # an update sums a few hundred products per weight, and one rounding more or less is one epsilon
FIT = {"device": "cpu", "threads": 1}  # one order of sums everywhere
ROUNDING_GROWN = 1e-9  # in float64, after a whole training
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm: no weights, and counted per part


ROUNDING_ALONE = (
    "parts are weighted by their samples, so only the order of sums differs. Those last digits grow as training goes on; "
    "in float32 they soon tip a ReLU or the choice of a pool, in float64 hardly ever."
)


def parts(scale: Scale) -> Sequence[Part]:
    samples, epochs = (2_000, 3) if scale.quick else (6_000, 10)  # neither is a multiple of the large batch
    rows = [(kind, 1, "single") for kind in (SINGLE, DOUBLE, BATCHNORM)]
    rows += [(kind, count, "single") for kind in (SINGLE, DOUBLE) for count in PARTS]
    rows += [(SINGLE, 4, "ddp"), (DOUBLE, 4, "ddp"), (BATCHNORM, 4, "single"), (EVEN, 4, "single")]
    return [
        Part(
            label(kind, count, strategy),
            partial(task, kind),
            strategy,
            {**FIT, "accumulate": count, "epochs": epochs, "ranks": 2 if strategy == "ddp" else 1},
            batch_size=LARGE // count,
            train_samples=samples,
        )
        for kind, count, strategy in sorted(rows, key=lambda row: (SINGLE, DOUBLE, BATCHNORM, EVEN).index(row[0]))
    ]


def label(kind: str, count: int, strategy: str = "single") -> str:
    return f"{kind}: {count} x {LARGE // count}{'' if strategy == 'single' else f', {strategy}'}"


def task(kind: str) -> Task:
    """LeNet on digits that the package draws itself."""
    import torch
    import torch.nn.functional as F

    from ....task import Task

    dtype = torch.float32 if kind == SINGLE else torch.float64
    return Task(
        model=partial(net, dtype, kind == BATCHNORM),
        train=partial(digits, "train", 6_000, dtype),
        test=partial(digits, "test", 1_000, dtype),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        weight=evenly if kind == EVEN else None,
        batch_size=LARGE,
        name="glyphs",
    )


def net(dtype: Any, batchnorm: bool) -> nn.Module:
    from torch import nn

    from ....tasks.models import lenet

    model = lenet(mean=0.17, std=0.25)
    if batchnorm:
        model.insert(2, nn.BatchNorm2d(6))  # behind the first convolution
    return model.to(dtype)


def digits(split: str, count: int, dtype: Any) -> tuple[Tensor, Tensor]:
    from ....tasks.glyphs import images

    pixels, labels = images(split, count)
    return pixels.to(dtype) / 255, labels


def evenly(target: Any) -> float:
    """Every part counts as one, however many samples it has."""
    return 1.0


def after_one_update(task: Task, run: Run) -> Mapping[str, float | None]:
    """The same comparison as of whole trainings, stopped at the first update."""
    count = run.accumulate or 1
    if count == 1:
        return {}
    from ....training.fit import fit

    same: dict[str, Any] = {**FIT, "progress": False}
    mine = fit(task, run.strategy, ranks=run.ranks, accumulate=count, max_steps=count, **same)
    whole = fit(task.replace(batch_size=LARGE), "single", max_steps=1, **same)
    return {"first": difference(mine, whole)}


def difference(run: Run, reference: Run) -> float | None:
    """The largest over the layers of: the furthest that a weight is off, by the largest weight of its layer."""
    if not run.weights or not reference.weights:
        return None
    largest = 0.0
    for name, value in reference.weights.items():
        if not name.endswith(STATISTICS):
            off = float((run.weights[name].double() - value.double()).abs().max())
            largest = max(largest, off / (float(value.double().abs().max()) or 1.0))  # (a layer may be all zeros)
    return largest


def after_training(run: Run, others: Mapping[str, Run]) -> float | None:
    kind = next(name for name, other in others.items() if other is run).partition(":")[0]
    large = others.get(label(DOUBLE if kind == EVEN else kind, 1))
    return None if large is None or large is run else difference(run, large)


def judge(table: Table) -> Verdict:
    """Rounding alone: an update is off by a few roundings, in either precision, and in float64 stays so to the end."""
    exact = [row for row in table if row.part.fit.get("accumulate") != 1 and row.label.partition(":")[0] in EPSILON]
    missing = [row.label for row in exact if not row.figures.get("first") or not row.figures.get("final")]
    if missing or not exact:
        return Verdict(None, "Not every row.", f"{', '.join(missing) or 'all rows'} did not run.")
    roundings = [value / EPSILON[row.label.partition(":")[0]] for row in exact for value in row.figures["first"]]
    first = {kind: largest(table, kind, "first") for kind in EPSILON}
    final = {kind: largest(table, kind, "final") for kind in EPSILON}
    holds = max(roundings) <= ROUNDINGS and final[DOUBLE] <= ROUNDING_GROWN
    measured = (
        f"After one update the weights of 2, 4 and 8 parts are at most {first[SINGLE]:.0e} from those of one batch of "
        f"{LARGE} in float32 and {first[DOUBLE]:.0e} in float64 ({max(roundings):.1f} times the step from 1 to the next number); "
        f"after {updates(table)} updates {final[SINGLE]:.0e} and {final[DOUBLE]:.0e}.{exceptions(table)}"
    )
    return Verdict(holds, measured, ROUNDING_ALONE if holds else "that is more than another order of sums explains.")


def largest(table: Table, kind: str, key: str) -> float:
    return max(value for row in table if row.label.startswith(f"{kind}:") for value in row.figures.get(key, ()))


def updates(table: Table) -> str:
    return f"{max(row.figure('updates') or 0.0 for row in table):.0f}"


def exceptions(table: Table) -> str:
    """Where several parts are another computation than one batch."""
    norm, even = table.figure(label(BATCHNORM, 4), "final"), table.figure(label(EVEN, 4), "final")
    return "".join(
        f" {why} makes it {off:.0e}."
        for why, off in (
            ("BatchNorm, which sees a part at a time,", norm),
            ("Weighting a short part like a full one", even),
        )
        if off is not None
    )


def by_parts(table: Table) -> list[Line]:
    return [
        over(
            [(count, table[label(kind, count)]) for count in PARTS if label(kind, count) in table],
            key,
            f"{kind}, {when}",
        )
        for kind in EPSILON
        for key, when in (("first", "one update"), ("final", "whole training"))
    ]


EXPERIMENT = Experiment(
    name="accumulation",
    title="Accumulated parts",
    claim="Several backward passes before one update equal one larger batch.",
    source="a statement about gradients, without figures",
    parts=parts,
    columns=(
        Column("first", "after 1 update", lambda run, others: figures(run).get("first"), ".0e"),
        Column("final", "at the end", after_training, ".0e"),
        Column("updates", "updates", lambda run, others: run.updates, ".0f"),
        Column("accuracy", "accuracy", lambda run, others: (run.test or {}).get("accuracy"), ".1%"),
    ),
    judge=judge,
    curves=(Curve("How far weights are from those of one batch", "parts", "relative difference", by_parts, "y"),),
    seeds=3,
    quick_seeds=1,
    quick_note="48 updates instead of 470",
    takes=("1 min", "15 min"),
    extra=after_one_update,
)
