"""The fits behind a verification, each made once: the task with some things changed, for some steps, under a strategy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ...data.loader_parts import LoaderParts
from ...data.process_state import seeded
from ...errors import ManyhandsError
from ...record.run import Run
from ...strategies.contract import Strategy
from ...task import Task
from ...training.run_fit import run_fit
from ...training.settings import FitSettings
from ...world.launch.by_value import pack, unpack
from .variants import doubled, gradient_kept, nudged


@dataclass(frozen=True)
class Case:
    """What is fitted, and how."""

    task: Task
    settings: FitSettings
    strategy: Strategy

    def with_task(self, **changes: Any) -> Case:
        return replace(self, task=self.task.replace(**changes))

    def with_step(self, **changes: Any) -> Case:
        return replace(self, settings=replace(self.settings, step=replace(self.settings.step, **changes)))


@dataclass(frozen=True)
class Change:
    """One thing that a fit does differently, and what it shows if that makes a strategy equal."""

    cause: str  # one word
    label: str  # "with plain SGD"
    make: Callable[[Case], Case]
    why: str = ""  # what differs, if this is the cause
    cure: str | None = None


@dataclass(frozen=True)
class Asked:
    """One fit: everything that tells it from others."""

    strategy: Strategy
    steps: int
    changes: tuple[Change, ...] = ()
    gradient: bool = False  # of the first update, instead of the weights after so many steps
    double: bool = False
    nudge: int | None = None  # the seed that moves the first weights by one rounding


class Fits:
    """Makes fits of a task and remembers them: the same question is not asked twice."""

    def __init__(self, task: Task, settings: FitSettings, say: Callable[[str], None] = lambda text: None):
        self.task, self.settings, self.say = _with_data(task.replace(test=None, metrics=None)), settings, say
        self._data = _packed(self.task.train)
        self._known: dict[Asked, Run | ManyhandsError] = {}

    def close(self) -> None:
        if self._data is not None:
            os.close(self._data)
            self._data = None

    def run(self, asked: Asked) -> Run:
        """The record with its weights; raises what ended the fit."""
        if asked not in self._known:
            try:
                self._known[asked] = self._fit(asked)
            except ManyhandsError as problem:
                self._known[asked] = problem
        found = self._known[asked]
        if isinstance(found, ManyhandsError):
            raise found
        return found

    def case(self, asked: Asked) -> Case:
        """What is fitted for this question. Every fit starts from data in the state it had at the beginning."""
        task = self.task if self._data is None else self.task.replace(train=unpack(self._data))
        case = Case(task, self.settings, asked.strategy)
        for change in asked.changes:
            case = change.make(case)
        if asked.nudge is not None and not asked.double:
            case = replace(case, task=nudged(case.task, asked.nudge))
        if asked.double:
            case = replace(case, task=doubled(case.task))
            if asked.nudge is not None:
                case = replace(case, task=nudged(case.task, asked.nudge))
        if asked.gradient:
            case = replace(case, task=gradient_kept(case.task)).with_step(clip=None)
        return case.with_step(max_steps=asked.steps)

    def _fit(self, asked: Asked) -> Run:
        case = self.case(asked)
        if not asked.double:
            return run_fit(case.task, case.strategy, case.settings)
        with suppress(ManyhandsError):
            return run_fit(case.task, case.strategy, case.settings)
        with _default_float64():  # a forward pass that makes tensors of its own makes them as wide as its inputs are
            return run_fit(case.task, case.strategy, case.settings)


@contextmanager
def _default_float64() -> Iterator[None]:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


def _with_data(task: Task) -> Task:
    """The task with its data made: once, not for every fit."""
    if not callable(task.train) or isinstance(task.train, Dataset | DataLoader | LoaderParts | tuple | list):
        return task
    with suppress(Exception), seeded(task.seed):  # a factory that fails does so again in the first fit, which says how
        if not isinstance(task.model, nn.Module):
            task.model()  # as a fit does, which leaves the generators elsewhere
        return task.replace(train=task.train())
    return task


def _packed(data: Any) -> int | None:
    """A Dataset may keep something from one reading to the next, so every fit is given its own copy."""
    if isinstance(data, LoaderParts | Dataset):
        with suppress(Exception):
            return pack(data)
    return None
