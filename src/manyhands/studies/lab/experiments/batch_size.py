"""Batch size: MobileNetV2 on CIFAR-10 with batches of 128 to 2048, by the published recipe and by this package's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ....record.run import Run
from ....task import Task
from ....training.evaluate import evaluate
from ..experiment import Column, Curve, Experiment, Line, Part, Scale, Verdict
from ..part_task import first
from ..running import figures
from ..table import Row, Table, by_epoch, over

BATCHES = (128, 256, 512, 1024, 2048)
RECIPES = ("published", "ours")
PUBLISHED = {128: 0.953, 256: 0.951, 512: 0.949, 1024: 0.941}  # validation accuracy
QUICK_BATCHES = (32, 64, 128, 256, 512)  # few images in large batches would leave a handful of steps
EPOCHS = 20  # all ten fits within nine minutes of an H200
SCATTER = 0.003  # what another seed alone changes
FITTED = 0.9  # of the training images; with less, training is not over
QUICK: dict[str, Any] = {"train_samples": 3072, "test_samples": 1000}


def parts(scale: Scale) -> Sequence[Part]:
    options = ",width=0.25,small" if scale.quick else ""
    fit: dict[str, Any] = {"epochs": 2, "threads": 1}  # two threads on layers this small wait for each other
    if not scale.quick:
        fit = {"epochs": EPOCHS, "eval_every": 4, "precision": "bf16" if scale.gpus else "fp32"}
    return [
        Part(
            label(batch, recipe), f"cifar10:recipe={recipe}{options}", batch_size=batch, fit=fit,
            published=published(batch, recipe, scale), **(QUICK if scale.quick else {}),
        )
        for recipe in RECIPES
        for batch in batches(scale)
    ]  # fmt: skip


def batches(scale: Scale) -> Sequence[int]:
    return QUICK_BATCHES if scale.quick else BATCHES


def label(batch: int, recipe: str) -> str:
    return f"{recipe}, {batch}"


def published(batch: int, recipe: str, scale: Scale) -> dict[str, float]:
    """Nothing beside a quick run: its few epochs of few images cannot be compared with it."""
    known = recipe == "published" and batch in PUBLISHED and not scale.quick
    return {"accuracy": PUBLISHED[batch]} if known else {}


# ---------------------------------------------------------------- figures


def accuracy(run: Run, others: Mapping[str, Run]) -> float | None:
    """Of the last epoch: no epoch is picked by its test accuracy."""
    return (run.test or {}).get("accuracy")


def fitted(run: Run, others: Mapping[str, Run]) -> float | None:
    return figures(run).get("fitted")


def speed(run: Run, others: Mapping[str, Run]) -> float | None:
    return run.samples_per_second


def on_training_images(task: Task, run: Run) -> dict[str, float | None]:
    """How many training images, neither cropped nor flipped, the final weights classify correctly: of as many as there
    are test images."""
    count = (run.test or {}).get("samples") or 0
    some = task.replace(train=partial(first, task.train, count), eval_batch_size=1000)
    device = "cuda" if (run.device or "").startswith("cuda") else "cpu"
    return {"fitted": evaluate(some, run.weights or {}, device=device, data="train").get("accuracy")}


COLUMNS = (
    Column("accuracy", "test", accuracy, ".2%"),
    Column("fitted", "training", fitted, ".2%"),
    Column("speed", "images/s", speed, ",.0f"),
)


# ---------------------------------------------------------------- the claim


def judge(table: Table) -> Verdict:
    """The claim is about the published recipe, from 128 to 1024; ours is reported beside it."""
    small, large = (_row(table, batch, "published") for batch in (batches(table.scale)[0], batches(table.scale)[3]))
    if small is None or large is None:
        return Verdict(None, "some rows have no figures.", "a row that the claim is about is missing.")
    drops, gains = _differences(small, large, "accuracy"), _differences(large, small, "fitted")
    measured = "; ".join(filter(None, (_in_words(table, recipe) for recipe in RECIPES))) + "."
    least = min(small.figure("fitted") or 0.0, large.figure("fitted") or 0.0)
    if least < FITTED:
        return Verdict(
            None, measured, f"the claim is about trained networks; one of these knows {least:.0%} of its training images."
        )  # fmt: skip
    if min(drops) > SCATTER and min(gains) > 0:
        return Verdict(True, measured, "fewer, longer steps fit the training images more closely, and the others less.")
    if max(drops) < -SCATTER:
        return Verdict(False, measured, "large batches validate better here.")
    if max(gains) < -SCATTER:
        return Verdict(
            False, measured,
            "large batches also fit the training images less: in as many epochs they make fewer updates.",
        )  # fmt: skip
    return Verdict(None, measured, f"the differences are within what another seed changes (about {SCATTER:.1%}).")


def _differences(one: Row, other: Row, key: str) -> list[float]:
    """Seed by seed."""
    mine, theirs = one.by_seed(key), other.by_seed(key)
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs] or [0.0]


def _row(table: Table, batch: int, recipe: str) -> Row | None:
    """A row with both accuracies."""
    name = label(batch, recipe)
    row = next((one for one in table if one.label == name), None)
    return row if row and row.figures.get("accuracy") and row.figures.get("fitted") else None


def _in_words(table: Table, recipe: str) -> str:
    found = [(batch, row) for batch in batches(table.scale) if (row := _row(table, batch, recipe)) is not None]
    if len(found) < 2:
        return ""
    (small, first_row), (large, last_row) = found[0], found[-1]
    before, after = ((row.figure("accuracy"), row.figure("fitted")) for row in (first_row, last_row))
    name = "the published recipe" if recipe == "published" else "our recipe"
    return (
        f"with {name} test accuracy goes from {before[0]:.2%} at {small} to {after[0]:.2%} at {large}, "
        f"training accuracy from {before[1]:.2%} to {after[1]:.2%}"
    )


def by_batch(table: Table) -> list[Line]:
    lines = []
    for recipe in RECIPES:
        rows = [
            (float(batch), table[label(batch, recipe)])
            for batch in batches(table.scale)
            if label(batch, recipe) in table
        ]
        lines += [over(rows, "accuracy", f"test, {recipe}"), over(rows, "fitted", f"training, {recipe}")]
        lines += [over(rows, "accuracy", "test", published=True)]
    return [percent(line) for line in lines]


def percent(line: Line) -> Line:
    points = [(x, 100 * middle, 100 * low, 100 * high) for x, middle, low, high in line.points]
    return Line(line.name, points, line.published)


EXPERIMENT = Experiment(
    name="batch-size",
    title="Batch size and accuracy on CIFAR-10",
    claim="larger batches fit the training set better and the validation set worse: 95.3 % at 128, 94.1 % at 1024.",
    source=(
        "CIFAR-10, MobileNetV2, SGD, weight decay 1e-4, warm-up and cosine, rate 0.2 at 512 and in proportion to the batch; "
        "our recipe: docs/tasks.md"
    ),
    parts=parts,
    columns=COLUMNS,
    judge=judge,
    curves=(
        Curve("Accuracy by batch size", "batch size", "accuracy, %", by_batch, logarithmic="x"),
        Curve("Test accuracy by epoch", "epoch", "test accuracy, %", by_epoch),
    ),
    seeds=1,
    quick_note=(
        "2 epochs of 3,072 images of 16x16 in batches a quarter as large, a quarter of the channels, instead of 20 epochs of "
        "50,000 of 32x32"
    ),
    takes=("2 min", "9 min on one GPU"),
    extra=on_training_images,
)  # fmt: skip
