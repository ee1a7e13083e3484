"""Loader workers: what they gain where every sample is augmented on its own, and what a batched augmentation leaves of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from ....record.run import Run
from ...intervals import Interval
from ..experiment import Column, Curve, Experiment, Line, Part, Scale, Verdict
from ..mnist_or_drawn import mnist_or_drawn, remark
from ..table import Table, by_epoch, over

WORKERS = (0, 2, 4)
BATCHED = "batched, no workers"
PUBLISHED = {  # per step: milliseconds of loading and of everything else; seconds of ten epochs; accuracy
    0: {"load": 6.4, "update": 1.1, "seconds": 72.80, "accuracy": 0.9908},
    2: {"load": 4.3, "update": 1.2, "seconds": 34.96, "accuracy": 0.9910},
    4: {"load": 0.5, "update": 1.2, "seconds": 18.47, "accuracy": 0.9907},
}
PUBLISHED_WITHOUT_AFFINE = {0: {"load": 3.3}}
GAIN = 1.1  # a job that is no more than this much faster is none
HIDDEN = 2.0  # loading is hidden where it takes less than one in so many of what it took


def parts(scale: Scale) -> Sequence[Part]:
    cut: dict[str, Any] = {"train_samples": 4800, "test_samples": 1000} if scale.quick else {}
    # A GPU leaves the cores to the workers; without one, a thread of its own for the step leaves them the other cores.
    # Steps are not captured: the published ones were launched one operation at a time.
    step: dict[str, Any] = {"capture": "off"} if scale.gpus else {"threads": 1}
    epochs = 1 if scale.quick else 10
    slow = [
        Part(
            label(workers, affine), partial(mnist_or_drawn, "slow" if affine else "slow,affine=no"),
            fit={**step, "epochs": epochs if affine else 1, "loader_workers": workers},
            published=published(workers, affine, scale), cost=(10 - workers) * (epochs if affine else 1),
            seeds=None if scale.quick else 1, **cut,
        )
        for affine in (True, False)
        for workers in WORKERS
    ]  # fmt: skip
    ours = {"epochs": epochs, **({} if scale.gpus else step)}
    return [*slow, Part(BATCHED, mnist_or_drawn, fit=ours, cost=(1 if scale.gpus else 5) * epochs, **cut)]


def label(workers: int, affine: bool = True) -> str:
    return f"{workers} workers{'' if affine else ', no affine'}"


def published(workers: int, affine: bool, scale: Scale) -> dict[str, float]:
    """Totals and accuracies of ten epochs are left out of a quick run, which has nothing to lay beside them."""
    found = PUBLISHED[workers] if affine else PUBLISHED_WITHOUT_AFFINE.get(workers, {})
    return {key: value for key, value in found.items() if not scale.quick or key in ("load", "update")}


# ---------------------------------------------------------------- figures


def load_ms(run: Run, others: Mapping[str, Run]) -> float | None:
    return (run.phases_ms or {}).get("load")


def update_ms(run: Run, others: Mapping[str, Run]) -> float | None:
    """Everything but loading, as published."""
    return (
        sum(value or 0.0 for value in run.phases_ms.values()) - (load_ms(run, others) or 0.0) if run.phases_ms else None
    )


def seconds(run: Run, others: Mapping[str, Run]) -> float | None:
    return run.seconds if _whole(run, others) else None


def accuracy(run: Run, others: Mapping[str, Run]) -> float | None:
    return (run.test or {}).get("accuracy") if _whole(run, others) else None


def _whole(run: Run, others: Mapping[str, Run]) -> bool:
    """Whether it trained as long as the others: a total or an accuracy of fewer epochs is not laid beside theirs."""
    return run.samples == max((other.samples or 0 for other in others.values()), default=run.samples)


# ---------------------------------------------------------------- the claim


def judge(table: Table) -> Verdict:
    gain, hidden = (table.ratio(key, label(0), label(4)) for key in ("seconds", "load"))
    batched = table.ratio("seconds", label(4), BATCHED)
    still = table.ratio("load", label(0, affine=False), label(0))
    if gain is None or hidden is None or batched is None or still is None:
        return Verdict(None, "some rows have no figures.", "a row that the claim is about is missing.")
    first, last = table[label(0)], table[label(4)]
    share = _share_of_load(table)
    measured = (
        f"with four workers it is {_times(gain)} as fast, loading takes {first.figure('load'):.1f} ms per step without "
        f"them and {last.figure('load'):.1f} ms with them, and accuracy differs by "
        f"{100 * abs((last.figure('accuracy') or 0) - (first.figure('accuracy') or 0)):.2f} points. Without the affine "
        f"{still.middle:.0%} of the loading is left (published: 52%). Whole batches augmented in the step need no worker "
        f"and are {batched.middle:.1f}x as fast as four workers.{_without_pil()}{remark(table)}"
    )
    if gain.low > GAIN and hidden.low > HIDDEN:
        why = f"loading is {share:.0%} of a step without workers (published: 85%), and workers do it beside the step."
        return Verdict(True, measured, why)
    if gain.high <= GAIN:
        return Verdict(False, measured, _why_not(table, share))
    if gain.low <= GAIN:
        return Verdict(None, measured, "it is faster with some seeds and not with others.")
    return Verdict(None, measured, "the job is faster, but more than half of the loading time is left.")


def _times(gain: Interval) -> str:
    return f"{gain.middle:.1f}x" + (f" ({gain.low:.2f} to {gain.high:.2f})" if gain.low != gain.high else "")


def _without_pil() -> str:
    return "" if find_spec("PIL") else " PIL is not installed, so torch moves each sample, which takes longer."


def _share_of_load(table: Table) -> float:
    load, update = (table[label(0)].figure(key) or 0.0 for key in ("load", "update"))
    return load / (load + update) if load + update else 0.0


def _why_not(table: Table, share: float) -> str:
    before, after = (table[label(workers)].figure("update") or 0.0 for workers in (0, 4))
    if not table.scale.gpus and after > GAIN * before:
        return (
            f"the step and the workers share {table.scale.cores} cores, so that loading beside the step slows everything "
            f"else down ({before:.1f} ms per step before, {after:.1f} ms now). The published step ran on a GPU."
        )
    return f"loading is {share:.0%} of a step without workers (published: 85%), so that hiding it gains little."


def load_by_workers(table: Table) -> list[Line]:
    lines = []
    for affine in (True, False):
        rows = [(float(count), table[label(count, affine)]) for count in WORKERS if label(count, affine) in table]
        name = "with the affine" if affine else "without"
        lines += [over(rows, "load", name), over(rows, "load", name, published=True)]
    return lines


EXPERIMENT = Experiment(
    name="loader-workers",
    title="Loader workers on MNIST",
    claim="loader workers hide the loading: with four of them the job is 3.9x as fast (18.47 s instead of 72.80) at the same accuracy.",
    source="MNIST, LeNet, batch 32, 10 epochs, random affine per sample, on one H100; update: everything but loading",
    parts=parts,
    columns=(
        Column("load", "load ms", load_ms),
        Column("update", "update ms", update_ms),
        Column("seconds", "total s", seconds),
        Column("accuracy", "accuracy", accuracy, ".2%"),
    ),
    judge=judge,
    curves=(
        Curve("Loading per step by loader workers", "loader workers", "ms per step", load_by_workers),
        Curve("Test accuracy by epoch", "epoch", "test accuracy, %", by_epoch),
    ),
    quick_seeds=3,
    takes=("1 min", "5 min on one GPU"),
    quick_note="1 epoch of 4,800 of the 60,000 samples instead of 10 of all; without a GPU the step has one thread",
)  # fmt: skip
