"""Hogwild: one process against many that write the same weights under a lock, in turns, or freely.

    sparse     logistic regression whose gradients hold a few of many weights: the case of the paper's proof
    dense      its twin: the same samples and numbers, but every update writes every weight
    dense xN   a small dense network that applies its middle layer N times: more work per gradient, no more weights

Every process takes the same number of samples per gradient, however many there are, and its gradient moves the weights
as far as in one process: n processes make the updates of one, in an n-th of the steps, from weights that are a little
stale. Taking turns makes one update of the gradients of a round, at n times the rate: as far, again. One thread each.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....record.run import Run
from ....task import Task
from ....tasks.sparse import make as sparse_task
from ..experiment import Column, Curve, Experiment, Line, Part, Scale
from ..table import Table, over
from .hogwild_verdict import judge, most_ranks, work_rows

WAYS = {"free": "hogwild:scale=shard", "locked": "locked:mode=free,scale=shard", "in turns": "locked:mode=turns"}
WORK = {1: 1200, 4: 1000, 16: 600, 48: 260, 150: 100}  # how often the middle layer is applied -> steps of a fit
PER_GRADIENT, PER_WORK_GRADIENT = 32, 8  # samples
PUBLISHED = {"RCV1": (12, 3.0), "graph cuts": (10, 4.0), "DBLife": (10, 9.0)}  # cores, speed-up
FEATURES, WIDTH = 64, 128  # of the small dense network
FIT = {"threads": 1, "eval_every": 1000}  # the test set is evaluated at the end alone


def parts(scale: Scale) -> Sequence[Part]:
    counts = scale.ranks() + [12] * (12 <= scale.cores < 16)  # as published, where it is the most
    most = counts[-1]
    found = []
    for name in ("sparse", "dense"):
        found.append(_logistic(scale, name, "1 process", "single", 1))
        found += [
            _logistic(scale, name, f"{way}, {ranks}", strategy, ranks)
            for way, strategy in WAYS.items()
            for ranks in counts[1:]
        ]
    if most > 12:
        found.append(_logistic(scale, "sparse", "free, 12", WAYS["free"], 12))
    for ranks in dict.fromkeys((most, 2)):
        for work, steps in WORK.items():
            found += [_work(scale, way, work, steps, ranks, ranks == most) for way in ("free", "in turns")]
    return found


def _logistic(scale: Scale, name: str, label: str, strategy: str, ranks: int) -> Part:
    published = {"speedup": PUBLISHED["RCV1"][1]} if (name, label) == ("sparse", "free, 12") else {}
    samples, tests, epochs = (20_000, 5_000, 1) if scale.quick else (60_000, 10_000, 2)
    return Part(
        f"{name}, {label}", partial(sparse_task, train=samples, test=tests, dense=name == "dense"), strategy,
        fit={**FIT, "epochs": epochs, "ranks": ranks}, batch_size=PER_GRADIENT * ranks,
        change={"name": name, "eval_batch_size": tests, "optimizer": _optimizer(20.0, strategy, ranks)},
        published=published, cost=1 + 3 / ranks,
    )  # fmt: skip


def _work(scale: Scale, way: str, work: int, steps: int, ranks: int, judged: bool) -> Part:
    return Part(
        f"dense x{work}, {way}, {ranks}", partial(dense_task, work), WAYS[way],
        fit={**FIT, "epochs": 1000, "ranks": ranks, "max_steps": steps // 2 if scale.quick else steps},
        batch_size=PER_WORK_GRADIENT * ranks,
        change={"optimizer": _optimizer(0.05, WAYS[way], ranks)}, seeds=None if judged else 1,
    )  # fmt: skip


def _optimizer(rate: float, strategy: str, ranks: int) -> partial[torch.optim.SGD]:
    """One update of all gradients of a round is to move the weights as far as one update of each would."""
    return partial(torch.optim.SGD, lr=rate * ranks if strategy == WAYS["in turns"] else rate)


class Repeated(nn.Module):
    """A network whose middle layer is applied `work` times, each time changing a little: work without weights."""

    def __init__(self, work: int):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.work = work

    def forward(self, samples: Tensor) -> Tensor:
        hidden = self.first(samples)
        for _ in range(self.work):
            hidden = hidden + torch.tanh(self.middle(hidden)) / self.work
        found: Tensor = self.last(hidden)
        return found


def dense_task(work: int) -> Task:
    return Task(
        model=partial(Repeated, work),
        train=partial(dense_samples, 32_768),
        test=partial(dense_samples, 1_024),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.05),
        eval_batch_size=1_024,
        name=f"dense x{work}",
    )


def dense_samples(count: int) -> tuple[Tensor, Tensor]:
    """Points around zero; the class says on which side of a curved surface they lie."""
    generator = torch.Generator().manual_seed(count)
    points = torch.randn(count, FEATURES, generator=generator)
    return points, (points[:, 0] * points[:, 1] + points[:, 2] > 0).long()


# ---- what is read from the runs ------------------------------------------------------------------------------------


def gradient_ms(run: Run, others: Mapping[str, Run]) -> float | None:
    """Forward and backward pass: the time a core spent on them, which others that take it away do not lengthen."""
    spent = [row.get("cpu_ms") for row in run.per_rank]
    known = [
        phases["forward"] + phases["backward"]
        for phases in spent
        if phases and phases["forward"] is not None and phases["backward"] is not None
    ]
    return statistics.fmean(known) if known else None


def speedup(run: Run, others: Mapping[str, Run]) -> float | None:
    """Over one process on the same problem."""
    base = others.get(f"{run.task}, 1 process")
    if base is None or not base.samples_per_second or not run.samples_per_second:
        return None
    return run.samples_per_second / base.samples_per_second


def speed_lines(table: Table) -> list[Line]:
    lines = []
    for problem in ("sparse", "dense"):
        for way in WAYS:
            rows = [(1, f"{problem}, 1 process")]
            rows += [(ranks, f"{problem}, {way}, {ranks}") for ranks in range(2, most_ranks(table) + 1)]
            lines.append(
                over([(x, table[label]) for x, label in rows if label in table], "speedup", f"{problem}, {way}")
            )
    for name, (cores, times) in PUBLISHED.items():
        lines.append(Line(f"{name} (published)", [(cores, times, times, times)], published=True))
    return lines


def turns_lines(table: Table) -> list[Line]:
    """How fast turns are beside no lock, over how long a gradient takes."""
    lines = []
    for ranks in sorted({ranks for ranks, *_ in work_rows(table)}):
        points = [
            (ms, 100 * ratio.middle, 100 * ratio.low, 100 * ratio.high)
            for count, ms, ratio in work_rows(table)
            if count == ranks
        ]
        lines.append(Line(f"{ranks} processes", sorted(points)))
    return lines


def staleness_lines(table: Table) -> list[Line]:
    lines = []
    for problem in ("sparse", "dense"):
        points = []
        for row in table:
            accuracy, span = row.figure("accuracy"), row.span("accuracy")
            stale = 0.0 if row.label == f"{problem}, 1 process" else row.figure("staleness")
            if row.label.startswith(f"{problem}, ") and stale is not None and accuracy is not None and span is not None:
                points.append((stale, 100 * accuracy, 100 * span[0], 100 * span[1]))
        lines.append(Line(problem, sorted(points)))
    return lines


EXPERIMENT = Experiment(
    name="hogwild",
    title="Updates without a lock",
    claim=(
        "on 10 to 12 cores, updates without a lock make sparse problems 3x (RCV1), over 4x (graph cuts) and 9x (DBLife) "
        "faster than one core; where a gradient takes longer than 1 ms, taking turns is as fast."
    ),
    source="sparse text classification (RCV1), graph cuts and matrix completion (DBLife) in C++, one sample per "
    "gradient, on 12 cores; here PyTorch on CPU cores, because the weights lie in memory that all processes share",
    parts=parts,
    columns=(
        Column("gradient", "gradient ms", gradient_ms),
        Column("speed", "samples/s", lambda run, others: run.samples_per_second, ",.0f"),
        Column("speedup", "speed-up", speedup),
        Column("staleness", "stale by", lambda run, others: (run.staleness or {}).get("mean"), ".1f"),
        Column("accuracy", "accuracy", lambda run, others: (run.test or {}).get("accuracy"), ".2%"),
    ),
    judge=judge,
    curves=(
        Curve("Speed-up over one process", "processes", "times as fast", speed_lines),
        Curve("Turns beside no lock", "gradient, ms", "speed in turns, % of free", turns_lines, "x"),
        Curve("Accuracy against staleness", "updates of others in between", "test accuracy, %", staleness_lines),
    ),
    quick_seeds=3,
    quick_note="1 epoch of 20,000 samples instead of 2 of 60,000, and half the steps with longer gradients",
    takes=("1 min", "6 min on 16 cores"),
    device="cpu",
)
