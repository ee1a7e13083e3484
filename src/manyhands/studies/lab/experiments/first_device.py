"""First device: what the first replica carries beside the others, and what is left of it when outputs stay where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....record.run import Run
from ....task import Task
from ..experiment import Column, Experiment, Part, Scale, Verdict
from ..mnist_or_drawn import mnist_or_drawn, remark
from ..table import Row, Table

WORDS, LENGTH, WIDTH = 8192, 16, 64  # of the language model, whose outputs are larger than all else it keeps
OUTPUTS = ("small outputs", "large outputs")
GATHERED, BALANCED = "data_parallel", "balanced_data_parallel"
EVEN = 1.1  # no more than this many times what the others have is as much


def parts(scale: Scale) -> Sequence[Part]:
    # Where replicas share one GPU, or one would be the CPU, neither time nor memory of a replica can be told apart.
    on = (
        {"ranks": scale.gpus}
        if scale.gpus > 1
        else {"ranks": max(2, min(8, scale.cores)), "device": "cpu", "threads": 1}
    )
    steps = {"epochs": 1, "max_steps": 60 if scale.quick else 150}
    return [
        Part(
            label(strategy, outputs), mnist_or_drawn if outputs == OUTPUTS[0] else language_model, strategy,
            fit={**on, **steps}, test_samples=100,
            published={"busy": 0.08, "busy_others": 0.01} if (strategy, outputs) == (GATHERED, OUTPUTS[0]) else {},
        )
        for outputs in OUTPUTS
        for strategy in (GATHERED, BALANCED)
    ]  # fmt: skip


def label(strategy: str, outputs: str) -> str:
    return f"{outputs}, {strategy.removesuffix('_data_parallel')}"


# ---------------------------------------------------------------- large outputs


def language_model() -> Task:
    """Guesses the next of 8,192 words from the one before: a score for every word at every place, 512 KiB per sample."""
    return Task(
        model=next_word_model,
        train=partial(sentences, 20_000),
        test=partial(sentences, 200),
        loss=next_word_loss,
        optimizer=partial(torch.optim.SGD, lr=1.0, momentum=0.9),
        batch_size=32,
        name="words",
    )


def next_word_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WORDS))


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """Word numbers, each followed by one of two: something to learn, and nothing to download."""
    chance = torch.Generator().manual_seed(count)
    words = [torch.randint(WORDS, (count,), generator=chance)]
    for _ in range(LENGTH):
        words.append((words[-1] * 5 + torch.randint(2, (count,), generator=chance)) % WORDS)
    text = torch.stack(words, dim=1)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def next_word_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


# ---------------------------------------------------------------- figures


def memory(run: Run) -> list[float]:
    """Megabytes of each replica: its GPU's peak; on CPUs, which replicas share, what it holds by our own count."""
    on_gpus = all(str(row.get("device", "")).startswith("cuda") for row in run.per_rank)
    held = [
        row.get("peak_memory_bytes") if on_gpus else sum((row.get("held_bytes") or {}).values()) for row in run.per_rank
    ]
    return [bytes_ / 1e6 for bytes_ in held if bytes_]


def busy(run: Run) -> list[float]:
    """The share of the time in which each replica works: its GPU's use; on CPUs, where its thread does not wait for others."""
    if (run.device or "").startswith("cuda"):
        return [gpu["mean_percent"] / 100 for gpu in (run.usage or {}).get("gpus") or ()]
    return [1 - (own["wait"] + own["load"]) / sum(own.values()) for own in _phases(run) if sum(own.values())]


def _phases(run: Run) -> Iterable[Mapping[str, float]]:
    return (row["phases_ms"] for row in run.per_rank if row.get("phases_ms"))


def of_the_first(read: Any) -> Any:
    return lambda run, others: next(iter(read(run)), None)


def of_the_others(read: Any) -> Any:
    def mean(run: Run, others: Mapping[str, Run]) -> float | None:
        rest = read(run)[1:]
        return sum(rest) / len(rest) if rest else None

    return mean


# ---------------------------------------------------------------- the claim


def judge(table: Table) -> Verdict:
    rows = {
        (strategy, outputs): _row(table, label(strategy, outputs))
        for strategy in (GATHERED, BALANCED)
        for outputs in OUTPUTS
    }
    if any(row is None for row in rows.values()):
        return Verdict(None, "some rows have no figures.", "a row that the claim is about is missing.")
    found = {key: {figure: times(row, figure) for figure in ("memory", "busy")} for key, row in rows.items() if row}
    small, large = (found[GATHERED, outputs] for outputs in OUTPUTS)
    balanced = found[BALANCED, OUTPUTS[1]]
    measured = (
        f"under data_parallel the first replica works {_span(small['busy'])} as long as the others and holds "
        f"{_span(small['memory'])} the memory where outputs are small, {_span(large['busy'])} and {_span(large['memory'])} where "
        f"they are large. balanced_data_parallel makes that {_span(balanced['busy'])} and {_span(balanced['memory'])}."
        f"{_where(table)}{remark(table)}"
    )
    more = [one[figure] for one in (small, large) for figure in ("memory", "busy")]
    if all(low > EVEN for low, _ in more):
        return Verdict(True, measured, _why(large, balanced))
    if all(high <= EVEN for _, high in more):
        return Verdict(False, measured, "the replicas carry the same.")
    return Verdict(None, measured, "memory and time, or the seeds, do not agree.")


def _row(table: Table, name: str) -> Row | None:
    row = next((row for row in table if row.label == name), None)
    return (
        row if row and all(row.figures.get(key) for key in ("memory", "memory_others", "busy", "busy_others")) else None
    )


def times(row: Row, figure: str) -> tuple[float, float]:
    """The first replica's figure by that of the others: the lowest and the highest over the seeds."""
    ratios = [
        first / max(other, 1e-9)
        for first, other in zip(row.figures[figure], row.figures[f"{figure}_others"], strict=True)
    ]
    return min(ratios), max(ratios)


def _span(times: tuple[float, float]) -> str:
    low, high = times
    return f"{low:.1f}x" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}x"


def _why(large: Mapping[str, tuple[float, float]], balanced: Mapping[str, tuple[float, float]]) -> str:
    why = "the first gathers the outputs of all, takes the loss over them and makes the update while the others wait"
    less = [name for figure, name in (("memory", "memory"), ("busy", "load")) if balanced[figure][1] < large[figure][0]]
    if len(less) == 2:
        return f"{why}. Where outputs stay and each replica takes its own loss, most of it is gone."
    return f"{why}. Leaving outputs where they are changes {f'its {less[0]} alone' if less else 'neither'} here."


def _where(table: Table) -> str:
    if table.scale.gpus > 1:
        return ""
    return (
        " There are not several GPUs here, so replicas are threads on CPU cores: memory is what each holds by our own count "
        "(they share one process), and work is the time in which its thread does not wait."
    )


EXPERIMENT = Experiment(
    name="first-device",
    title="The first device",
    claim="DataParallel uses the first device at 8 % and the others at 1 %: the first carries more load and more memory.",
    source="MNIST, LeNet, batch 32, 8 H100; no figures of memory were published",
    parts=parts,
    columns=(
        Column("memory", "first MB", of_the_first(memory), ".1f"),
        Column("memory_others", "others MB", of_the_others(memory), ".1f"),
        Column("busy", "first busy", of_the_first(busy), ".0%"),
        Column("busy_others", "others busy", of_the_others(busy), ".0%"),
    ),
    judge=judge,
    quick_seeds=3,
    takes=("1 min", "2 min on 16 cores"),
    quick_note="60 steps instead of 150",
)  # fmt: skip
