"""Recording a step in a CUDA graph: warm it up, find what cannot be recorded, check it, and see how long it takes.

A step that cannot be recorded is found while it still runs as an ordinary one: with torch told to refuse
whatever waits for the device, and by looking whether it drew numbers on the host.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...data.batches import Batch
from ...data.process_state import drawn_from, generators
from ...strategies.pieces.worker import OrdinaryWorker
from .captured import Captured, Replay

TOLERANCE = 1e-4  # relative difference between the recorded and the ordinary step that is still the same step
NOISE_MARGIN = 3.0  # times as far from the ordinary step as that is from itself
SAME_GRADIENT = 0.05  # of the gradient's length: bf16 keeps two or three digits
SAME_WAY = 0.5  # of the update's length; another batch or other random numbers give more than 1
WARM_UP = 3
MEAN_GRADIENT = "exp_avg"  # what torch's Adam calls it


class CannotRecord(Exception):
    """Why a step cannot be recorded, as a sentence for people."""


def draws_on_device(captured: Captured) -> bool:
    """Run the step as an ordinary one and refuse what a recording cannot repeat; says whether it draws on the device."""
    device = captured.data.device
    generator = torch.cuda.default_generators[device.index or 0]
    with _on_side_stream(device):
        ordinary_step(captured, next(captured.data.epoch(captured.data.at)))
        for _ in range(WARM_UP):
            run(captured, lambda: captured.program(1))
        host = generators()
        captured.set(0, [])
        generator.manual_seed(0)
        torch.cuda.synchronize(device)
        try:
            with refusing_waits():
                captured.program(1)
            captured.forget_place()
        except RuntimeError as problem:
            raise CannotRecord(f"the step waits for the device: {_first_line(problem)}") from problem
        if drawn_from(host, generators()):
            raise CannotRecord("the step draws random numbers on the host")
        return bool(generator.get_offset() != 0)


def run(captured: Captured, program: Callable[[], None]) -> None:
    device = captured.data.device
    rates = [float(group["lr"]) for group in captured.worker.updater.optimizer.param_groups]
    captured.set(0, [rates] * captured.most_units)
    torch.cuda.default_generators[device.index or 0].manual_seed(0)  # every try draws the same numbers
    program()
    captured.forget_place()


def recorded(captured: Captured, units: int) -> Replay:
    """A CUDA graph of the program; its memory is its own."""
    if (average := captured.worker.updater.average) is not None:
        average.begun = True  # recorded updates move it
    try:
        with _capturable(captured):
            return graph_of(lambda: captured.program(units), captured.data.device)
    except CannotRecord:
        captured.worker.updater.optimizer.zero_grad(set_to_none=True)
        raise


def graph_of(program: Callable[[], None], device: torch.device) -> Replay:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            program()
    except (RuntimeError, torch.AcceleratorError) as problem:
        _free_generator(device)
        raise CannotRecord(f"recording failed: {_first_line(problem)}") from problem
    return graph.replay


def _free_generator(device: torch.device) -> None:
    """A recording that broke off leaves the device's generator in it; a new state takes its place."""
    generator = torch.cuda.default_generators[device.index or 0]
    generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())


def compare(ordinary: list[Tensor], recorded: list[Tensor]) -> None:
    """Refuse a recording that leaves other numbers."""
    worst = 0.0
    for expected, found in zip(ordinary, recorded, strict=True):
        if expected.is_floating_point() and expected.numel():
            scale = float(expected.abs().max()) or 1.0
            worst = max(worst, float((expected - found).abs().max()) / scale)
    if not worst <= TOLERANCE:
        raise CannotRecord(f"the recorded step differs from the ordinary one by {worst:.1e} of the largest weight")


@dataclass(frozen=True)
class Weights:
    """Those of a model at one moment, and the mean gradients that Adam keeps: after one update a share of that gradient."""

    values: list[Tensor]
    gradients: list[Tensor]


def compare_updates(began: Weights, ordinary: Weights, again: Weights, recorded: Weights) -> None:
    """Refuse a recording of one update that does something else than the ordinary one, made twice from the same weights.

    Atomic additions (in attention's gradient), and products that are summed in another order while a graph is recorded,
    leave the last bits of a gradient open. Adam makes a whole step of each number, also where its gradient is nothing but
    those bits. So a recording may be as far from the ordinary update as that is from itself; and where the gradients agree,
    the weights only have to go the same way.
    """
    noise = apart(ordinary.values, again.values)
    if apart(ordinary.values, recorded.values) <= NOISE_MARGIN * noise:
        return
    try:
        compare(ordinary.values, recorded.values)
    except CannotRecord as problem:
        if not ordinary.gradients:
            raise
        gradients = _share(began.gradients, ordinary.gradients, recorded.gradients)
        weights = _share(began.values, ordinary.values, recorded.values)
        if not (gradients <= SAME_GRADIENT and weights <= SAME_WAY):
            raise CannotRecord(f"{problem}, its gradients by {gradients:.1%} and its update by {weights:.1%}") from None


def _share(began: list[Tensor], one: list[Tensor], other: list[Tensor]) -> float:
    """How far apart two ends are, of the way to the first."""
    way = apart(began, one)
    return apart(one, other) / way if way else math.inf


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    """The distance of all numbers together: a few that fall either way hardly show, a step that is another one does."""
    pairs = ((a, b) for a, b in zip(one, other, strict=True) if a.is_floating_point())
    return math.sqrt(sum(float((a - b).double().square().sum()) for a, b in pairs))


def milliseconds(captured: Captured, replay: Replay, repeats: int = 10) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        run(captured, replay)
    begin.record()
    for _ in range(repeats):
        run(captured, replay)
    end.record()
    end.synchronize()
    return max(1e-3, begin.elapsed_time(end) / repeats)


def ordinary_step(captured: Captured, batch: Batch) -> None:
    """A step with its update, but without moving the schedule on."""
    captured.prepare(batch)
    captured.worker.add_gradient(batch)
    captured.clock.enter("update")
    captured.worker.updater.apply(captured.worker.units.scale(batch.step))


class Before:
    """Weights, buffers and optimizer state as they were; state that did not exist yet is put back as zeros.

    The copies are the host's: three of a large model's weights would take the device more memory than its training does.
    """

    def __init__(self, worker: OrdinaryWorker):
        self.worker = worker
        self._tensors = [(tensor, _on_host(tensor)) for tensor in self._model_tensors()]
        self._state = {
            parameter: {key: _on_host(value) for key, value in state.items() if isinstance(value, Tensor)}
            for parameter, state in worker.updater.optimizer.state.items()
        }
        self._average = worker.updater.average
        self._begun = self._average is not None and self._average.begun
        self._averaged = (
            {name: _on_host(value) for name, value in self._average.values.items()} if self._average else {}
        )

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
        if self._average is not None:
            self._average.begun = self._begun
            for name, value in self._averaged.items():
                self._average.values[name].copy_(value)
        self.worker.updater.optimizer.zero_grad(set_to_none=True)

    def began(self) -> Weights:
        """As they were."""
        kept = [self._state.get(parameter, {}) for parameter in self._with_gradients()]
        gradients = [state.get(MEAN_GRADIENT, torch.zeros(())) for state in kept]
        return Weights([value for _, value in self._tensors], gradients)

    def now(self) -> Weights:
        state = self.worker.updater.optimizer.state
        gradients = [_on_host(state[parameter][MEAN_GRADIENT]) for parameter in self._with_gradients()]
        return Weights([_on_host(tensor) for tensor in self._model_tensors()], gradients)

    def _with_gradients(self) -> Iterator[nn.Parameter]:
        state = self.worker.updater.optimizer.state
        return (parameter for _, parameter in self.worker.updater.named if MEAN_GRADIENT in state.get(parameter, {}))


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


@contextmanager
def _on_side_stream(device: torch.device) -> Iterator[None]:
    """What runs here first makes its choices and buffers outside of the stream that is recorded."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


@contextmanager
def refusing_waits() -> Iterator[None]:
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


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
