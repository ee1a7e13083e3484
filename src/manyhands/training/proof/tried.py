"""What trying a job has shown, kept for the next fit of the same job: the rounds of a comparison, the slices of a plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from ...model.layout import lay_channels_last
from ...strategies.contract import Strategy, divides
from ...strategies.job import Job
from .probe import probe

FOUND = ("proof", "weight", "wide_products", "channels_last")  # of a job


class Tried:
    """For fits of one task whose settings differ in strategy, ranks, threads and length alone."""

    def __init__(self) -> None:
        self._found: dict[bool, dict[str, Any]] = {}
        self._prepared: dict[Strategy, Any] = {}
        self.seconds = 0.0  # that trying it out took,
        self.prepare_seconds: dict[str, float] = {}  # and preparing each strategy: cutting the model, say

    def try_out(self, job: Job, strategy: Strategy, devices: Sequence[torch.device]) -> None:
        """Refuse what cannot work, and tell the job what its model and loss are like (probe.py)."""
        divided = divides(strategy)
        if divided not in self._found:
            began = time.monotonic()
            probe(job, devices, divided=divided)
            self.seconds = max(self.seconds, time.monotonic() - began)
            self._found[divided] = {name: getattr(job, name) for name in FOUND}
            return
        for name, value in self._found[divided].items():
            setattr(job, name, value)
        if job.channels_last:
            job.model = lay_channels_last(job.model)

    def prepare(self, job: Job, strategy: Strategy) -> Any:
        """What the strategy works out once for all ranks."""
        if strategy not in self._prepared:
            began = time.monotonic()
            self._prepared[strategy] = strategy.prepare(job)
            took = time.monotonic() - began
            self.prepare_seconds[strategy.name] = max(took, self.prepare_seconds.get(strategy.name, 0.0))
        return self._prepared[strategy]
