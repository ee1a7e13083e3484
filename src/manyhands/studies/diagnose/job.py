"""The job under diagnosis: the base of all experiments, what is known of it before any, and what to type for a change."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data import Dataset

from ...data.loading import DatasetSource
from ...data.sources import TensorSource
from ...data.stream import StreamSource
from ...record.run import available_cores
from ...strategies.contract import Strategy, processes
from ...strategies.job import Job, StepSettings
from ...task import Task
from ...training.build import build, check_length
from ...training.settings import FitSettings
from ..slices import MOST, Variant

STEP_DEFAULTS, FIT_DEFAULTS = StepSettings(), FitSettings()
SPOKEN_OF = ("device", "threads", "checkpoint_every")  # settings of a fit that a command repeats


@dataclass(frozen=True)
class Diagnosed:
    """A task, a strategy and settings, with what building them told."""

    task: Task
    strategy: Strategy
    settings: FitSettings
    samples: int
    epoch_steps: int
    steps: int  # of the whole job
    epochs: int
    in_memory: bool  # data that is read by indexing tensors
    stream: bool
    dataset: Dataset | None
    parameter_bytes: int
    cores: int
    typed: Mapping[str, Any] = field(default_factory=dict)  # what a command repeats beside the settings

    @classmethod
    def of(
        cls, task: Task, strategy: Strategy, settings: FitSettings, typed: Mapping[str, Any] | None = None
    ) -> Diagnosed:
        job = build(task, settings.step)
        check_length(job)
        source = job.train
        return cls(
            task=task,
            strategy=strategy,
            settings=settings,
            samples=len(source),
            epoch_steps=job.order.steps_per_epoch if not job.endless else job.total_steps,
            steps=job.total_steps,
            epochs=math.ceil(job.total_steps / job.order.steps_per_epoch),
            in_memory=isinstance(source, TensorSource),
            stream=isinstance(source, StreamSource),
            dataset=source.dataset if isinstance(source, DatasetSource) else None,
            parameter_bytes=sum(parameter.nbytes for parameter in job.model.parameters()),
            cores=available_cores(),
            typed=typed or {},
        )

    @property
    def ranks(self) -> int:
        return self.strategy.ranks

    @property
    def processes(self) -> int:
        """That compute at the same time; where ranks are threads of one, its ranks."""
        return max(processes(self.strategy), self.strategy.ranks)

    @property
    def workers(self) -> int:
        chosen = self.settings.step.loader_workers
        return chosen if isinstance(chosen, int) else 0

    def variant(
        self,
        label: str = "as it is",
        *,
        task: Mapping[str, Any] | None = None,
        strategy: Strategy | None = None,
        step: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Variant:
        """The job with these things changed, long enough for any slice."""
        work = self.task.replace(**task) if task else self.task
        changed = replace(self.settings, step=replace(self.settings.step, **(step or {})), **settings)
        if not self.stream:
            epochs = max(self.epochs, math.ceil(MOST / max(1, self.epoch_steps)))
            changed = replace(changed, step=replace(changed.step, epochs=epochs))
        return Variant(label, work, strategy or self.strategy, changed)

    def command(self, strategy: Strategy | None = None, verb: str = "train", **options: Any) -> str:
        """What to type: the job as it is, but for `options` (names of `fit` keywords, and `batch_size`)."""
        chosen = strategy or self.strategy
        given: dict[str, Any] = {
            **_differing(self.settings.step, STEP_DEFAULTS, [item.name for item in dataclasses.fields(StepSettings)]),
            **_differing(self.settings, FIT_DEFAULTS, SPOKEN_OF),
            **self.typed,
            **options,
        }
        words = ["manyhands", verb, self.settings.source or self.task.name or "TASK", str(chosen)]
        if chosen.name != "single":
            words += ["--ranks", str(chosen.ranks)]
        for name, value in given.items():
            if value is None or value is False:
                continue
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
        return shlex.join(words)


def _differing(value: Any, defaults: Any, names: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names if getattr(value, name) != getattr(defaults, name)}


def job_of(diagnosed: Diagnosed) -> Job:
    return build(diagnosed.task, diagnosed.settings.step)
