"""What is tried before a fit starts: one pass over two samples, and the proof of exactness over a few more.

It works on copies, so that nothing it does reaches the caller or the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, process_time
from typing import Any

import torch
from torch import Tensor, nn

from ...data import nest
from ...data.keys import sample_keys
from ...data.loading import DatasetSource
from ...data.order import permutation
from ...data.process_state import drawn_from, generators, seeded
from ...data.sources import TensorSource
from ...data.stream import StreamSource
from ...errors import BadInput
from ...model.layout import channels_last_pays, lay_channels_last
from ...strategies.job import Job, Proof, trained_parameters
from .proof import Take, prove
from .samples import with_rare_values
from .trial import Samples

READ_AHEAD, READING_SECONDS = 8, 0.02  # times the samples that are tried; a dataset that decodes images reads no more


def probe(job: Job, devices: Sequence[torch.device], any_layout: bool = True, divided: bool = True) -> None:
    """Refuse targets and losses that cannot work, choose how images lie in memory, and find out what would keep a
    strategy that divides the work (`divided`) from training the same model as `single`.

    What fails here for any other reason is left to the ranks, which name the step and phase.
    """
    try:
        with seeded(job.task.seed):
            input, target = job.example()
    except BadInput:
        raise
    except Exception as problem:
        raise BadInput(f"task.train: sample 0 cannot be read: {type(problem).__name__}: {problem}") from problem
    model, loss_of, augment = job.copies()
    model.train()
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    input, target = (nest.each(value, lambda tensor: tensor.to(place, copy=True)) for value in (input, target))
    began, failed = process_time(), False
    with seeded(job.task.seed):
        before = generators()
        try:
            if augment is not None:
                input = augment(input, torch.arange(nest.count(input), dtype=torch.int64, device=place))
            named = dict(model.named_parameters())
            output = model(input)
            _check_same_parameters(named, dict(model.named_parameters()))
            _check_class_targets(job, output, target)
            loss = loss_of(output, target)
            _check_loss(loss)
            loss.backward()
        except BadInput:
            raise
        except Exception:
            failed = True
        drawn = drawn_from(before, generators())
    seconds = process_time() - began
    if failed:  # two samples may be too few for it; if it is anything else, the ranks will name step and phase
        job.proof = prove(job, partial(_read, job), 0.0) if divided else job.proof
        return
    unused = frozenset(name for name, parameter in trained_parameters(model) if parameter.grad is None)
    job.proof = Proof(unused=unused, reseeds=bool(drawn - {"torch"}))
    if any_layout and not job.settings.compile and {place.type, *(device.type for device in devices)} == {"cpu"}:
        _choose_layout(job, input, target)
    if divided:
        job.proof = prove(job, partial(_read, job), seconds)


def _read(job: Job, count: int) -> tuple[int, Take]:
    """The first samples of the training's order with some that tell more, and the way to take some as a rank gets them."""
    count = min(count, len(job.train))
    stream = isinstance(job.train, StreamSource)
    indices = torch.arange(count) if stream else permutation(len(job.train), job.task.seed, 0)[:count]
    if isinstance(job.train, TensorSource):
        indices = with_rare_values([job.train.input, job.train.target], indices, len(job.train))
    elif isinstance(job.train, DatasetSource):
        indices = _rare_in_dataset(job, job.train, count)
    keys = sample_keys(job.order.seed, 0, indices)
    samples: list[Any] = []
    with seeded(job.task.seed):
        if isinstance(job.train, StreamSource):
            samples = list(job.train.samples(count))
        elif isinstance(job.train, DatasetSource):
            samples = job.train.samples(indices, keys)

    def take(places: Sequence[int]) -> Samples:
        chosen = torch.tensor(list(places))
        if isinstance(job.train, DatasetSource | StreamSource):
            pair = nest.pair(job.train.collate([samples[place] for place in places]))
        else:
            pair = job.train.gather(indices[chosen])
        return Samples(*pair, keys[chosen], len(places))

    return len(samples) or count, take


def _rare_in_dataset(job: Job, train: DatasetSource, count: int) -> Tensor:
    """The same choice from as many samples as can be read in no time."""
    order = permutation(len(train), job.task.seed, 0)[: READ_AHEAD * count]
    keys = sample_keys(job.order.seed, 0, order)
    began, ahead = monotonic(), []  # not the processor's time: a dataset may wait for a disk
    with seeded(job.task.seed), suppress(Exception):  # what cannot be read is refused, or named by the ranks
        for start in range(0, len(order), count):
            ahead += train.samples(order[start : start + count], keys[start : start + count])
            if monotonic() - began > READING_SECONDS:
                break
        return order[with_rare_values(nest.pair(train.collate(ahead)), torch.arange(count), len(ahead))]
    return order[:count]


def _choose_layout(job: Job, input: Any, target: Any) -> None:
    """Lay the model's images out with channels last, where its layers are faster so on CPU."""
    model, loss_of, _ = job.copies()
    if channels_last_pays(model, lambda model: loss_of(model(input), target)):
        job.model = lay_channels_last(job.model)
        job.channels_last = True


def _check_same_parameters(before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]) -> None:
    """The optimizer would not know the new ones, and every rank would draw its own."""
    new = next((name for name, parameter in after.items() if before.get(name) is not parameter), None)
    if new is not None:
        raise BadInput(
            f'the forward pass makes the parameter "{new}", which would not be trained; make it in __init__, '
            "or run the model once over a sample before it is trained"
        )


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise BadInput(f"task.loss must return a tensor with one number (found {type(loss).__name__})")
    if loss.numel() != 1:
        raise BadInput(
            f"task.loss must return one number, the mean over samples (found shape {tuple(loss.shape)}); use reduction='mean'"
        )


def _check_class_targets(job: Job, output: Any, target: Any) -> None:
    """The commonest mistake of all: targets that cross entropy cannot read."""
    kind = _loss_name(job.task.loss)
    if kind is None or not isinstance(output, Tensor) or not isinstance(target, Tensor) or output.dim() < 2:
        return
    classes = output.shape[1]
    wanted = (output.shape[0], *output.shape[2:])
    as_probabilities = kind == "cross_entropy" and target.is_floating_point() and target.shape == output.shape
    if as_probabilities:
        return
    full = (len(job.train), *target.shape[1:]) if isinstance(job.train, TensorSource) else tuple(target.shape)
    if target.dtype != torch.int64 or tuple(target.shape) != tuple(wanted):
        dtype = str(target.dtype).removeprefix("torch.")
        raise BadInput(f"targets are {dtype} {full} but {kind} expects class numbers (int64, one per sample)")
    labels = getattr(job.train, "target", target)
    if isinstance(labels, Tensor) and labels.numel():
        low, high = int(labels.min()), int(labels.max())
        ignored = getattr(job.task.loss, "ignore_index", -100)
        if high >= classes or (low < 0 and low != ignored):
            raise BadInput(
                f"targets hold classes {low} to {high} but the model's output has {classes} (0 to {classes - 1})"
            )


def _loss_name(loss: Any) -> str | None:
    """cross_entropy or nll_loss where the loss plainly is one of torch's, else None."""
    inner = getattr(loss, "func", loss)  # functools.partial
    name = getattr(inner, "__name__", None) or type(inner).__name__
    module = getattr(inner, "__module__", "") or ""
    if not module.startswith("torch."):
        return None
    plain = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower().removesuffix("_loss")
    return {"cross_entropy": "cross_entropy", "nll": "nll_loss", "n_l_l": "nll_loss"}.get(plain)
