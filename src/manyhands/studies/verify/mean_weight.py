"""What a loss that is no mean over samples may be instead: a mean over other units, or a sum."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ...strategies.job import Job
from ...training.proof.counted import Counted
from ...training.proof.find_weight import fitting
from ...training.proof.passes import NOISE, Samples, Trial
from ...training.proof.samples import read_samples

SAMPLES = 12


def mean_over(job: Job) -> Counted | None:
    """The units with which a few samples come to the same in parts as together, if there are some."""
    with suppress(Exception):  # targets of any kind
        whole, parts = _losses(job)
        if whole[0].target is not None:
            return fitting((whole[0].target, whole[1]), [(samples.target, loss) for samples, loss in parts])
    return None


def is_a_sum(job: Job) -> bool:
    """Whether the loss of a batch is what its parts sum up to."""
    with suppress(Exception):
        (_, whole), parts = _losses(job)
        total = sum(loss for _, loss in parts)
        return abs(total - whole) <= 10 * NOISE * abs(whole)
    return False


def _losses(job: Job) -> tuple[tuple[Samples, float], list[tuple[Samples, float]]]:
    """Of a few samples together, and of two unequal parts of them, without dropout and the like."""
    total, take = read_samples(job, min(SAMPLES, max(job.task.batch_size, 2)))
    first = max(1, total // 3)

    def loss(places: Sequence[int]) -> tuple[Samples, float]:
        trial, samples = Trial(job), take(places)
        trial.model.eval()
        return samples, float(trial.run(samples, backward=False).loss)

    return loss(range(total)), [loss(range(first)), loss(range(first, total))]


def in_words(weight: Any) -> str:
    return weight.line() if isinstance(weight, Counted) else "weight"
