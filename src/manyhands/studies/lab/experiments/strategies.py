"""Strategies on MNIST: ddp looked faster than the baseline, and had the better loader. The same again with equal loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ....record.run import Run
from ...intervals import Interval
from ..experiment import Column, Curve, Experiment, Line, Part, Scale, Verdict
from ..mnist_or_drawn import mnist_or_drawn, remark
from ..table import Table, over

SAMPLES = 600_000  # of ten epochs: published totals are laid beside measured speeds
TOTALS = {  # published seconds of ten epochs, by method and loading
    ("baseline", "no workers"): 73.0,
    ("data_parallel", "no workers"): 161.0,
    ("ddp x1", "no workers"): 75.58,
    ("baseline", "workers"): 18.47,
    ("ddp x1", "workers"): 20.27,
    ("ddp", "workers"): 26.11,
}
USE = {("data_parallel", "no workers"): {"busiest": 0.08, "others": 0.01}}  # of the first GPU, and of the others
LOADINGS = {"no workers": "slow", "workers": "slow", "batched": ""}
GAIN = 1.1  # what is no more than this much faster is no faster


def ranks(scale: Scale) -> int:
    """As many as there are GPUs where there are several; else ranks are cores, up to the eight that were published."""
    return scale.gpus if scale.gpus > 1 else max(2, min(8, scale.cores))


def parts(scale: Scale) -> Sequence[Part]:
    count, loaders = ranks(scale), 4 if scale.cores >= 8 else 2
    methods = {  # by name: the strategy, its ranks, and how many loader workers each of its processes has
        "baseline": ("single", 1, loaders),
        "data_parallel": ("data_parallel", count, loaders),
        "ddp x1": ("ddp", 1, loaders),
        "ddp": ("ddp", count, max(1, loaders // count)),
    }
    found = [
        _part(scale, method, loading, strategy, many, workers if loading == "workers" else 0)
        for loading in LOADINGS
        for method, (strategy, many, workers) in methods.items()
    ]
    if scale.gpus > 1:
        return found
    all_cores = _part(scale, "baseline", "batched", "single", 1, 0)
    fit = {**all_cores.fit, "threads": scale.cores}
    return [*found, replace(all_cores, label=_all_cores(scale), fit=fit, seeds=1 if scale.quick else 2)]


def _part(scale: Scale, method: str, loading: str, strategy: str, many: int, workers: int) -> Part:
    published = {"speed": SAMPLES / TOTALS[method, loading]} if (method, loading) in TOTALS else {}
    fit: dict[str, Any] = {"ranks": many, "epochs": 1, "loader_workers": workers}
    if scale.gpus > 1:
        fit |= {"capture": "off"} if loading != "batched" else {}
        published |= USE.get((method, loading), {})
    else:  # a rank is a core
        fit |= {"device": "cpu", "threads": 1}
    judged = method in ("baseline", "ddp")
    return Part(
        label(scale, method, loading), partial(mnist_or_drawn, LOADINGS[loading]), strategy, fit,
        published=published, seeds=None if judged else 1 if scale.quick else 2, cost=0.6 if loading == "batched" else 1.0, **_cut(scale),
    )  # fmt: skip


def _cut(scale: Scale) -> dict[str, Any]:
    return {"train_samples": 4_800 if scale.quick else 9_600, "test_samples": 1_000 if scale.quick else 2_000}


def label(scale: Scale, method: str, loading: str) -> str:
    return f"{method}{f' x{ranks(scale)}' if method in ('ddp', 'data_parallel') else ''}, {loading}"


def _all_cores(scale: Scale) -> str:
    return f"baseline, batched, {scale.cores} threads"


# ---------------------------------------------------------------- figures


def uses(run: Run) -> list[float]:
    """How far every GPU, or every core, was in use, the busiest first."""
    usage = run.usage or {}
    on_gpus = (run.device or "").startswith("cuda")
    found = sorted((one["mean_percent"] / 100 for one in usage.get("gpus" if on_gpus else "cores") or ()), reverse=True)
    return found if on_gpus else found[: run.environment.get("cores")]  # those of the machine may be more than ours


def busiest(run: Run, others: Mapping[str, Run]) -> float | None:
    return next(iter(uses(run)), None)


def the_others(run: Run, others: Mapping[str, Run]) -> float | None:
    rest = uses(run)[1:]
    return sum(rest) / len(rest) if rest else None


# ---------------------------------------------------------------- the claim


def judge(table: Table) -> Verdict:
    scale = table.scale

    def gain(method: str, loading: str, over_loading: str = "") -> Interval | None:
        return table.ratio("speed", label(scale, method, loading), label(scale, "baseline", over_loading or loading))

    unequal, equal, batched = gain("ddp", "workers", "no workers"), gain("ddp", "workers"), gain("ddp", "batched")
    alone, without = gain("ddp x1", "no workers"), gain("ddp", "no workers")
    if unequal is None or equal is None or batched is None or alone is None or without is None:
        return Verdict(None, "some rows have no figures.", "a row that the claim is about is missing.")
    ddp = f"ddp on {ranks(scale)} ranks"
    measured = (
        f"{ddp} with loader workers is {_times(unequal)} as fast as the baseline without any. With workers for both it is "
        f"{_times(equal)} as fast, with workers for neither {_times(without)} (on one rank: {alone.middle:.2f}x), and with whole "
        f"batches, which cost next to nothing to load, {_times(batched)}.{_where(table)}{remark(table)}"
    )
    if unequal.high <= GAIN:
        return Verdict(False, measured, "there is no speed-up to explain, even with unequal loaders.")
    if unequal.low > GAIN and equal.high <= GAIN:
        return Verdict(True, measured, "the speed-up goes once the baseline's loader has worker processes too.")
    if equal.low > GAIN:
        return Verdict(False, measured, f"{ddp} stays {_times(equal)} as fast with equal loaders.{_why_faster(table)}")
    which = "unequal" if unequal.low <= GAIN else "equal"
    return Verdict(None, measured, f"with {which} loaders ddp is faster with some seeds and not with others.")


def _times(gain: Interval) -> str:
    return f"{gain.middle:.2f}x ({gain.low:.2f} to {gain.high:.2f})" if gain.low != gain.high else f"{gain.middle:.2f}x"


def _where(table: Table) -> str:
    """What stands for a device here, and what one process makes of the same cores."""
    if table.scale.gpus > 1:
        return ""
    many = table.ratio("speed", _all_cores(table.scale), label(table.scale, "baseline", "batched"))
    threads = f"; one process with {table.scale.cores} threads is {_times(many)} as fast as with one" if many else ""
    return f" There are not several GPUs here, so each rank has one CPU core{threads}."


def _why_faster(table: Table) -> str:
    return "" if table.scale.gpus > 1 else (
        " A core is busy with a batch of 32, so that more cores help; the published GPUs were far from busy."
    )  # fmt: skip


def speeds(table: Table) -> list[Line]:
    """Speed over ranks: one line per loading, from the rows of ddp."""
    scale = table.scale
    lines = []
    for loading in LOADINGS:
        pairs = [(1, label(scale, "ddp x1", loading)), (ranks(scale), label(scale, "ddp", loading))]
        lines.append(over([(x, table[name]) for x, name in pairs if name in table], "speed", f"ddp, {loading}"))
    return lines


EXPERIMENT = Experiment(
    name="strategies",
    title="Strategies on MNIST",
    claim=(
        "ddp looks 2.8x as fast as the baseline (26 against 73 s), but only because its loader has worker processes; "
        "with equal loaders the baseline wins."
    ),
    source=(
        "MNIST, LeNet, batch 32, random affine per sample, 8 H100, speeds from the seconds of 10 epochs; busiest, others: "
        "use of the busiest GPU or core, and of the rest"
    ),
    parts=parts,
    columns=(
        Column("speed", "samples/s", lambda run, others: run.samples_per_second, ",.0f"),
        Column("seconds", "total s", lambda run, others: run.seconds),
        Column("accuracy", "accuracy", lambda run, others: (run.test or {}).get("accuracy"), ".1%"),
        Column("busiest", "busiest", busiest, ".0%"),
        Column("others", "others", the_others, ".0%"),
    ),
    judge=judge,
    curves=(Curve("Speed of ddp by ranks", "ranks", "samples per second", speeds),),
    quick_seeds=3,
    takes=("1 min", "3 min on 16 cores"),
    quick_note="1 epoch of 4,800 of the 60,000 samples (whole run: of 9,600)",
)  # fmt: skip
