"""The memory a fit needs: weights, gradients, optimizer state and activations, from one small pass over a copy of the model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...data import nest
from ...data.process_state import seeded
from ...data.sources import TensorSource
from ...strategies.contract import Strategy, processes
from ...strategies.job import Job, trained_parameters
from ...world.launch.by_value import by_value_copy

SAMPLES = 4  # of the pass
PROCESS = 64 << 20  # bytes a rank has of its own beside these; the rest of its pages it shares with its siblings
PASSES_SECONDS = 0.5  # a pass that took longer is not repeated


@dataclass(frozen=True)
class Needs:
    """Bytes of one copy of each, and what one sample adds."""

    weights: int
    gradients: int
    optimizer: int
    sample: float  # activations of one sample
    batch: float  # bytes of one sample's input and target
    data: int  # data in memory, which all ranks of a host share
    seconds: float | None  # of a sample's forward and backward pass

    def parts(self, strategy: Strategy, batch_size: int) -> dict[str, float]:
        """Over all processes of this host; the caller keeps the weights once more."""
        weights, gradients, optimizer = strategy.traits.copies or _one_per_rank(strategy)
        return {
            "weights": (weights + 1) * self.weights,
            "gradients": gradients * self.gradients,
            "optimizer state": optimizer * self.optimizer,
            "activations": batch_size * (self.sample + self.batch),
            "data": self.data,
            "processes": processes(strategy) * PROCESS,
        }

    def total(self, strategy: Strategy, batch_size: int) -> float:
        return sum(self.parts(strategy, batch_size).values())


def _one_per_rank(strategy: Strategy) -> tuple[int, int, int]:
    """Replicas in one process share their optimizer."""
    return strategy.ranks, strategy.ranks, min(strategy.ranks, processes(strategy))


def needs(job: Job, free: float) -> Needs:
    """Measured where a few copies of the model fit into the memory that is free; else reckoned as Adam's."""
    weights = sum(tensor.nbytes for tensor in (*job.model.parameters(), *job.model.buffers()))
    trained = sum(parameter.nbytes for _, parameter in trained_parameters(job.model))
    data = sum(
        t.nbytes
        for part in (job.train, job.test)
        if isinstance(part, TensorSource)
        for t in nest.leaves((part.input, part.target))
    )
    found = None
    if 5 * weights < free:
        with suppress(Exception):  # what a pass fails with is not for the doctor: a fit says it before it starts
            found = _pass(job)
    optimizer, sample, batch, seconds = found or (2 * trained, 0.0, 0.0, None)
    if job.task.ema is not None:
        optimizer += trained
    return Needs(weights, trained, optimizer, sample, batch, data, seconds)


def _pass(job: Job) -> tuple[int, float, float, float]:
    """(bytes of optimizer state, bytes a sample's activations take, bytes of the sample, seconds)."""
    model, calling, augment = job.copies()
    model.train()
    with seeded(job.task.seed), _one_thread():
        pair = by_value_copy(job.example(min(SAMPLES, job.task.batch_size)))
        count = nest.count(pair[0])
        input = pair[0] if augment is None else augment(pair[0], torch.arange(count))
        own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        for _ in range(2):  # the first pass of a program also loads what it computes with
            kept: dict[int, int] = {}
            began = time.process_time()  # not the clock: other processes may use the core meanwhile
            with saved_tensors_hooks(lambda tensor, kept=kept: _noted(tensor, own, kept), lambda tensor: tensor):  # type: ignore[misc]
                loss = calling.loss_of(calling.output(model, input), pair[1])
            loss.backward()
            seconds = time.process_time() - began
            if seconds > PASSES_SECONDS:
                break
        optimizer = job.task.optimizer(trained_parameters(model))
        optimizer.step()
    state = sum(tensor.nbytes for values in optimizer.state.values() for tensor in nest.leaves(dict(values)))
    batch = sum(tensor.nbytes for tensor in nest.leaves((input, pair[1])))
    return state, sum(kept.values()) / count, batch / count, seconds / count


@contextmanager
def _one_thread() -> Iterator[None]:
    """Several threads on a busy machine wait for each other, and would be measured doing so."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


def _noted(tensor: Tensor, own: set[int], kept: dict[int, int]) -> Any:
    with suppress(Exception):  # tensors without a storage of their own
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
    return tensor
