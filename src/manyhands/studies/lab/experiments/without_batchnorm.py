"""Without BatchNorm: MobileNetV2 with every BatchNorm removed, beside the same with it and beside what can take its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiment import Curve, Experiment, Line, Part, Scale, Verdict
from ..table import Row, Table, by_epoch, over
from .batch_size import COLUMNS, QUICK, on_training_images, percent

KINDS = {  # the first two as published, the others as well as it can be done without batch statistics
    "BatchNorm": "recipe=published,schedule=linear",
    "removed": "recipe=published,schedule=linear,norm=removed",
    "none": "norm=none",
    "group": "norm=group",
}
CLIPPED = ("none", "group")  # the gradient's norm, at 1
BATCHES, QUICK_BATCHES = (512, 2048), (32, 128)
EPOCHS = 10  # all eight fits within five minutes of an H200
LEARNT = 0.15  # guessing is right for one image in ten


def parts(scale: Scale) -> Sequence[Part]:
    options = ",width=0.25,small" if scale.quick else ""
    fit: dict[str, Any] = {"epochs": 2, "threads": 1}  # two threads on layers this small wait for each other
    if not scale.quick:
        fit = {"epochs": EPOCHS, "eval_every": 2, "precision": "bf16" if scale.gpus else "fp32"}
    cut = QUICK if scale.quick else {}
    return [
        Part(
            label(kind, batch), f"cifar10:{chosen}{options}", batch_size=batch,
            fit={**fit, "clip": 1.0} if kind in CLIPPED else fit, **cut,
        )
        for batch in batches(scale)
        for kind, chosen in KINDS.items()
    ]  # fmt: skip


def batches(scale: Scale) -> Sequence[int]:
    """Smaller ones with few images, so that there are steps enough to learn from."""
    return QUICK_BATCHES if scale.quick else BATCHES


def label(kind: str, batch: int) -> str:
    return f"{kind}, {batch}"


# ---------------------------------------------------------------- the claim


def judge(table: Table) -> Verdict:
    rows = {(kind, batch): _row(table, kind, batch) for batch in batches(table.scale) for kind in KINDS}
    known = {key: row for key, row in rows.items() if row is not None}
    plain = [row for (kind, _), row in known.items() if kind == "BatchNorm"]
    removed = [row for (kind, _), row in known.items() if kind == "removed"]
    if len(removed) < 2 or len(plain) < 2:
        return Verdict(None, "some rows have no figures.", "a row that the claim is about is missing.")
    measured = "; ".join(_in_words(batch, known) for batch in batches(table.scale)) + "."
    if not all(learnt(row) for row in plain):
        return Verdict(None, measured, "the same network has not learnt with BatchNorm either in so few steps.")
    if all(learnt(row) for row in removed):
        return Verdict(True, measured, "what is left of the signal after 53 layers is enough for the first steps.")
    if not any(learnt(row) for row in removed):
        return Verdict(
            False, measured,
            "its first weights rely on BatchNorm to bring every layer's output to unit variance; without it the signal "
            "fades layer by layer, and all images look alike to the last one. Shortcuts around every block, gains and "
            "biases that start from what a batch of images shows, and AdamW make up for it.",
        )  # fmt: skip
    return Verdict(None, measured, "one batch size learns, and the other does not.")


def learnt(row: Row) -> bool:
    """Not at all where the loss did not stay finite."""
    return (row.figure("accuracy") or 0.0) > LEARNT


def _row(table: Table, kind: str, batch: int) -> Row | None:
    """A row with an accuracy, or with the reason why there is none: a loss that did not stay finite is a result."""
    name = label(kind, batch)
    row = next((one for one in table if one.label == name), None)
    return row if row is not None and (row.figures.get("accuracy") or row.problem) else None


def _in_words(batch: int, known: dict[tuple[str, int], Row]) -> str:
    found = []
    for kind in KINDS:
        row = known.get((kind, batch))
        if row is not None:
            value = row.figure("accuracy")
            found.append(f"{kind} {'diverges' if value is None else format(value, '.2%')}")
    return f"at batch {batch} {', '.join(found)}"


def by_batch(table: Table) -> list[Line]:
    lines = []
    for kind in KINDS:
        rows = [(float(batch), row) for batch in batches(table.scale) if (row := _row(table, kind, batch)) is not None]
        lines.append(percent(over(rows, "accuracy", kind)))
    return lines


EXPERIMENT = Experiment(
    name="without-batchnorm",
    title="MobileNetV2 without BatchNorm",
    claim="MobileNetV2 was trained with every BatchNorm removed, at batch 512 and 2048 (no figures are given).",
    source="CIFAR-10, MobileNetV2, SGD, weight decay 1e-4, linear decay, rate 0.2 at 512 and 0.8 at 2048",
    parts=parts,
    columns=COLUMNS,
    judge=judge,
    curves=(
        Curve("Test accuracy by epoch", "epoch", "test accuracy, %", by_epoch),
        Curve("Test accuracy by batch size", "batch size", "test accuracy, %", by_batch, logarithmic="x"),
    ),
    seeds=1,
    quick_note=(
        "2 epochs of 3,072 images of 16x16 in batches of 32 and 128, a quarter of the channels, instead of 50,000 of 32x32 "
        "in batches of 512 and 2048"
    ),
    takes=("2 min", "5 min on one GPU"),
    extra=on_training_images,
)  # fmt: skip
