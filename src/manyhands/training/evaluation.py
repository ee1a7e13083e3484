"""Evaluations of one model, again and again: data on the device once, sums that stay there, whole batches recorded.

first evaluation   batch by batch as ordinary passes: a fit of a few steps has no other, and recording would not pay
from the second    a whole batch is one replay of a CUDA graph (capture/recorded_pass.py), the short one an ordinary pass

Both add up the same numbers in the same order, in 64 bits, and the device is asked for them once, at the end.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ..data import nest
from ..data.feed import each_once
from ..data.process_state import generators
from ..data.resident import fits
from ..data.sources import Source, TensorSource
from ..strategies.job import Job
from ..strategies.pieces.units import units_of
from .accuracy import Accuracy
from .capture.graph import CannotRecord
from .capture.recorded_pass import RecordedPass
from .metrics import Metrics

LEAST_BATCHES = 8  # making a recording takes as long as a few ordinary batches


class Sums:
    """Loss, units and right answers of the batches so far, where the batches are."""

    def __init__(self, job: Job, device: torch.device):
        self._job = job
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.units = torch.zeros_like(self.loss)
        self.accuracy = Accuracy()

    def reset(self) -> None:
        """Back to nothing, in place: a recording adds to these very numbers."""
        self.loss.zero_()
        self.units.zero_()
        self.accuracy.reset()

    def add(self, output: Any, target: Any, count: int) -> None:
        job = self._job
        loss = job.calling.loss_of(output, target)
        mean = loss.double().reshape(()).to(self.loss.device)
        if job.weight is None:
            self.loss += mean * count
            self.units += count
        else:  # a batch without a unit has the loss 0 / 0
            units = units_of(job.weight, target, self.loss.device)
            self.loss += torch.where(units > 0, mean * units, 0.0)
            self.units += units
        if job.task.metrics is None:
            self.accuracy.add(output, target, loss, own=job.task.loss is None)

    def result(self) -> dict[str, Any]:
        units = float(self.units)
        return {"loss": float(self.loss) / units if units else None, **self.accuracy.result()}


class Evaluation:
    """Evaluates a model on one source of samples, with whatever weights it has by then."""

    def __init__(self, job: Job, model: nn.Module, source: Source, device: torch.device):
        self.job, self.model, self.device = job, model.to(device), device
        self.source = _on_device(source, device)
        self.batch_size = job.task.eval_batch_size or job.task.batch_size
        self.recorded: RecordedPass | None = None
        self._sums = Sums(job, device)
        self._records = self._could_record()
        self._copies = True  # whether the model writes to its input: known after a batch
        self._times = 0

    @torch.no_grad()
    def figures(self) -> dict[str, Any]:
        """What the record calls `test`."""
        training = self.model.training
        self.model.eval()
        self._prepare()
        traces = self._traces() if self._records and self._times == 0 else None
        metrics, samples = Metrics(self.job.task.metrics or {}, self.device), 0
        batches = each_once(self.source, self.batch_size, self.device)
        for input, target, count in islice(batches, self.job.settings.eval_batches):
            if self.recorded is not None and count == self.batch_size:
                output = self.recorded(input, target)
                if metrics.keep:
                    output = nest.each(output, Tensor.clone)  # the next replay writes there
            else:
                output = self._ordinary(input, target, count)
            metrics.update(output, target, count)
            samples += count
        result = {"samples": samples, **self._sums.result(), **metrics.result()}
        self.model.train(training)
        self._records = self._records and (traces is None or traces == self._traces())
        self._times += 1
        return result

    def _prepare(self) -> None:
        """Make the recording where it is time to, or drop one that no longer fits the model; begin with empty sums."""
        if self.recorded is not None and not self.recorded.valid():
            self.recorded = None
        elif self._records and self._times == 1 and isinstance(self.source, TensorSource):
            first = self.source.slice(0, self.batch_size)
            with suppress(CannotRecord):  # then its passes stay ordinary
                work = partial(self._ordinary, count=self.batch_size)
                self.recorded = RecordedPass(self.model, work, first, self._sums.loss)
        self._sums.reset()

    def _ordinary(self, input: Any, target: Any, count: int) -> Any:
        """A batch's outputs, once all but the task's own metrics has been made of them."""
        if self._copies:
            input, target = nest.each((input, target), Tensor.clone)
        output = self.job.calling.output(self.model, input)
        self._sums.add(output, target, count)
        self._copies = self._copies and any(tensor._version for tensor in nest.leaves((input, target)))
        return output

    def _could_record(self) -> bool:
        """Whether recording may be tried, as far as it can be told without a pass."""
        task, source = self.job.task, self.source
        return (
            self.job.settings.capture != "off"
            and isinstance(source, TensorSource)
            and all(tensor.is_cuda for tensor in nest.leaves((source.input, source.target)))
            and len(source) // self.batch_size >= LEAST_BATCHES
            and not (task.loss is None and task.metrics is None)  # accuracy looks at a model's own loss each time
        )

    def _traces(self) -> list[Any]:
        """What passes leave behind that a recording could not repeat: state written, random numbers drawn."""
        held = [(id(tensor), tensor._version) for tensor in (*self.model.parameters(), *self.model.buffers())]
        drawn = [generator.get_offset() for generator in torch.cuda.default_generators]
        return [held, generators(), drawn]


def _on_device(source: Source, device: torch.device) -> Source:
    """Samples in memory live on the GPU where there is room: copied batch by batch they made the host wait for each."""
    if not isinstance(source, TensorSource) or not fits(source, device):
        return source
    input, target = nest.each((source.input, source.target), lambda tensor: tensor.to(device))
    return TensorSource(input, target)
