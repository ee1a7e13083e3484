"""Recording a step in a CUDA graph: warm it up, find what cannot be recorded, check it, and see how long it takes.

All of it happens before the first step, on the real model and data; weights, optimizer and buffers are put back as
they were. A step that cannot be recorded is found while it still runs as an ordinary one: with torch told to refuse
whatever waits for the device, and by looking whether it drew numbers on the host.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data import nest
from ...data.batches import Batch
from ...data.resident import Resident
from ...model.late_weights import Beside, give_back
from ...record.cuda_clock import CudaClock
from ...strategies.contract import Worker
from ...strategies.job import Job
from ...strategies.pieces.worker import OrdinaryWorker
from ...world.rank import Rank
from .captured import Captured, Replay, why_not
from .sgd_in_slices import sliced_sgd

GROUP_MS = 8.0  # a replay should keep the device busy this long, so that the host is always ahead of it
TOLERANCE = 1e-4  # relative difference between the recorded and the ordinary step that is still the same step
WARM_UP = 3
SAMPLED_STEPS = 12


class CannotRecord(Exception):
    """Why a step cannot be recorded, as a sentence for people."""


def capture(
    worker: Worker, data: Any, job: Job, rank: Rank, prepare: Callable[[Batch], None], epoch: int
) -> tuple[Worker, str | None]:
    """The worker with its steps recorded, or as it was with the reason why they are not."""
    reason = why_not(worker, data, job)
    if reason is not None:
        return worker, reason
    assert isinstance(worker, OrdinaryWorker)
    assert isinstance(data, Resident)
    assert isinstance(rank.clock, CudaClock)
    data.begin(epoch)
    captured = Captured(worker, data, prepare)
    before = Before(worker)
    try:
        _record(captured, before)
    except CannotRecord as problem:
        return worker, str(problem)
    finally:
        before.restore()
    rank.clock.capture(_phases(captured, rank.clock))
    before.restore()
    return captured, None


def _record(captured: Captured, before: Before) -> None:
    """Try the ordinary step, record it, compare both, and record as many in a row as keep the device busy."""
    draws = _try(captured)
    if draws and captured.accumulate > 1:
        raise CannotRecord("steps that draw random numbers cannot be accumulated in a recording")
    captured.together = _augments_together(captured)
    before.restore()
    _run(captured, lambda: captured.program(1))
    ordinary = before.now()
    one = _checked(captured, before, ordinary)
    took = _milliseconds(captured, one)
    beside = _side_by_side(captured, before, ordinary, took)
    if beside is not None:
        one, took = beside
    elif draws:  # a try that broke off may have put another generator in place of the one this recording reads
        one = _checked(captured, before, ordinary)
    units = 1
    if not draws:  # a seed a step: only a replay of one step can have its own
        units = max(1, min(captured.most_units, round(GROUP_MS / took)))
    many = one if units == 1 else _recorded(captured, units)
    captured.use(one, many, units)


def _checked(captured: Captured, before: Before, ordinary: list[Tensor]) -> Replay:
    """A recording of one update that does what the ordinary one did."""
    one = _recorded(captured, 1)
    before.restore()
    _run(captured, one)
    _compare(ordinary, before)
    return one


def _side_by_side(
    captured: Captured, before: Before, ordinary: list[Tensor], took: float
) -> tuple[Replay, float] | None:
    """The recording with weight gradients on streams of their own and a sliced update, where that is faster."""
    worker = captured.worker
    if worker.job.settings.precision != "fp32" or worker.job.settings.compile:
        return None
    beside = Beside(worker.plain.modules(), captured.data.device)
    worker.replace_parts(after_backward=beside.settle, write=sliced_sgd(worker.updater.optimizer))
    try:
        one = _checked(captured, before, ordinary)
        faster = _milliseconds(captured, one)
        if faster < took:
            return one, faster
    except CannotRecord:
        pass
    worker.replace_parts()
    give_back(beside.layers)
    return None


def _try(captured: Captured) -> bool:
    """Run the step as an ordinary one and refuse what a recording cannot repeat; says whether it draws on the device."""
    device = captured.data.device
    generator = torch.cuda.default_generators[device.index or 0]
    with _on_side_stream(device):
        _ordinary_step(captured, next(captured.data.epoch(captured.data.at)))
        for _ in range(WARM_UP):
            _run(captured, lambda: captured.program(1))
        host = _host_randomness()
        captured.set(0, [])
        generator.manual_seed(0)
        torch.cuda.synchronize(device)
        try:
            with _refusing_waits():
                captured.program(1)
            captured.forget_place()
        except RuntimeError as problem:
            raise CannotRecord(f"the step waits for the device: {_first_line(problem)}") from problem
        if not _same(host, _host_randomness()):
            raise CannotRecord("the step draws random numbers on the host")
        return bool(generator.get_offset() != 0)


def _run(captured: Captured, program: Callable[[], None]) -> None:
    device = captured.data.device
    rates = [float(group["lr"]) for group in captured.worker.updater.optimizer.param_groups]
    captured.set(0, [rates] * captured.most_units)
    torch.cuda.default_generators[device.index or 0].manual_seed(0)  # every try draws the same numbers
    program()
    captured.forget_place()


def _recorded(captured: Captured, units: int) -> Replay:
    """A CUDA graph of the program; its memory is its own."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(captured.data.device)
    try:
        with _capturable(captured), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            captured.program(units)
    except (RuntimeError, torch.AcceleratorError) as problem:
        captured.worker.updater.optimizer.zero_grad(set_to_none=True)
        _free_generator(captured.data.device)
        raise CannotRecord(f"recording failed: {_first_line(problem)}") from problem
    return graph.replay


def _free_generator(device: torch.device) -> None:
    """A recording that broke off leaves the device's generator in it; a new state takes its place."""
    generator = torch.cuda.default_generators[device.index or 0]
    generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())


def _compare(ordinary: list[Tensor], before: Before) -> None:
    worst = 0.0
    for expected, found in zip(ordinary, before.now(), strict=True):
        if expected.is_floating_point() and expected.numel():
            scale = float(expected.abs().max()) or 1.0
            worst = max(worst, float((expected - found).abs().max()) / scale)
    if not worst <= TOLERANCE:
        raise CannotRecord(f"the recorded step differs from the ordinary one by {worst:.1e} of the largest weight")


def _augments_together(captured: Captured) -> bool:
    """Whether augmenting two batches at once gives what augmenting each gives (mixing within a batch does not)."""
    augment, data = captured.job.task.augment, captured.data
    count = captured.batch_count
    if augment is None or data.keys is None or len(data.indices) < 2 * count:
        return True
    input, _ = data.gather(data.indices[: 2 * count])
    both = augment(input, data.keys[: 2 * count])
    halves = [
        augment(nest.part(input, part), data.keys[: 2 * count][part])
        for part in (slice(0, count), slice(count, 2 * count))
    ]
    for whole, first, second in zip(nest.leaves(both), nest.leaves(halves[0]), nest.leaves(halves[1]), strict=True):
        if whole.shape[0] != 2 * count or not torch.allclose(whole, torch.cat((first, second)), atol=1e-5, rtol=1e-5):
            return False
    return True


def _milliseconds(captured: Captured, replay: Replay, repeats: int = 10) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        _run(captured, replay)
    begin.record()
    for _ in range(repeats):
        _run(captured, replay)
    end.record()
    end.synchronize()
    return max(1e-3, begin.elapsed_time(end) / repeats)


def _phases(captured: Captured, clock: CudaClock) -> list[float]:
    """The shares of the phases in a short run of ordinary steps."""
    with clock.sample() as measured:
        for batch, _ in zip(captured.data.epoch(captured.data.at), range(SAMPLED_STEPS), strict=False):
            clock.begin_step()
            _ordinary_step(captured, batch)
            clock.enter("other")
            clock.end_step()
    total = sum(measured) or 1
    return [value / total for value in measured]


def _ordinary_step(captured: Captured, batch: Batch) -> None:
    """A step with its update, but without moving the schedule on."""
    captured.prepare(batch)
    captured.worker.add_gradient(batch)
    captured.clock.enter("update")
    captured.worker.updater.apply()


class Before:
    """Weights, buffers and optimizer state as they were; state that did not exist yet is put back as zeros."""

    def __init__(self, worker: OrdinaryWorker):
        self.worker = worker
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in self._model_tensors()]
        self._state = {
            parameter: {key: value.clone() for key, value in state.items() if isinstance(value, Tensor)}
            for parameter, state in worker.updater.optimizer.state.items()
        }

    def _model_tensors(self) -> Iterator[Tensor]:
        yield from self.worker.plain.parameters()
        yield from self.worker.plain.buffers()

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, value in self._tensors:
            tensor.copy_(value)
        for parameter, state in self.worker.updater.optimizer.state.items():
            kept = self._state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, Tensor):
                    value.copy_(kept[key]) if key in kept else value.zero_()
        self.worker.updater.optimizer.zero_grad(set_to_none=True)

    def now(self) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in self._model_tensors()]


@contextmanager
def _on_side_stream(device: torch.device) -> Iterator[None]:
    """What runs here first makes its choices and buffers outside of the stream that is recorded."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """torch raises where an operation would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _capturable(captured: Captured) -> Iterator[None]:
    """torch's Adam must be told that its step is being recorded."""
    groups = [group for group in captured.worker.updater.optimizer.param_groups if "capturable" in group]
    before = [group["capturable"] for group in groups]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, value in zip(groups, before, strict=True):
            group["capturable"] = value


def _host_randomness() -> tuple[Any, Any, Tensor]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def _same(one: tuple[Any, Any, Tensor], other: tuple[Any, Any, Tensor]) -> bool:
    keys = bool(np.array_equal(one[1][1], other[1][1])) and one[1][2:] == other[1][2:]
    return one[0] == other[0] and keys and torch.equal(one[2], other[2])


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
