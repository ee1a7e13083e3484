"""From a task to a job: factories called under the seed, data opened, what cannot be trained refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ..data.loader_parts import LoaderParts
from ..data.order import Order
from ..data.pairs import Pairs
from ..data.process_state import seeded
from ..data.sources import Source, TensorSource, make_source
from ..data.stream import StreamSource
from ..errors import BadInput
from ..model.calling import Calling
from ..model.modes import keep_eval_modes, mode_note
from ..model.optimizers import check_optimizer, optimizer_traits
from ..model.without_compiler import make_without_compiler
from ..strategies.job import Job, StepSettings, trained_parameters
from ..task import Task
from ..world.launch.by_value import by_value_copy

REFER_TO_MODEL = ("loss", "optimizer", "schedule", "augment", "metrics", "sample")


def build(task: Task, settings: StepSettings) -> Job:
    """Call the factories, open the data and refuse what cannot be trained."""
    if not isinstance(task, Task):
        raise BadInput(f"fit needs a manyhands Task (found {type(task).__name__}); mh.load_task reads one from a file")
    with seeded(task.seed):
        task, model = _build_model(task)
        task, train = _open(task, "train")
        task, test = (task, None) if task.test is None else _open(task, "test")
    settings, notes = _as_loaders_say(task, train, settings)
    drop_last = isinstance(task.train, LoaderParts) and task.train.drop_last
    order = Order(len(train), task.batch_size, task.seed, settings.accumulate, drop_last)
    if not order.steps_per_epoch:
        raise BadInput(
            f"task.train holds {len(train)} samples, fewer than the batch_size of {task.batch_size}, and its DataLoader "
            "drops the last batch (drop_last=True): nothing is left to train on"
        )
    if (note := mode_note(model, keep_eval_modes(model))) is not None:
        notes.append(note)
    calling = Calling.of(task, model, partial(_first_samples, task, train))
    job = Job(task, model.train(), train, test, order, settings, calling, weight=task.weight, notes=notes)
    _check_layouts(model)
    make_without_compiler()
    check_optimizer(task, trained_parameters(model), job.total_updates)
    job.optimizer_traits = optimizer_traits(task, trained_parameters(model))
    return job


def _open(task: Task, field: str) -> tuple[Task, Source]:
    """The data, and the task with what a DataLoader says of it."""
    data = _made(getattr(task, field), field)
    if isinstance(data, DataLoader):  # a factory made it
        task = task.replace(**{field: data})
        data = getattr(task, field)
    return task, make_source(data, task.collate, field, Pairs(target=task.target, kept=task.loss is None))


def _as_loaders_say(task: Task, train: Source, settings: StepSettings) -> tuple[StepSettings, list[str]]:
    """The number of loader workers, where only a DataLoader says it, and notes for the record."""
    parts = [data for data in (task.train, task.test) if isinstance(data, LoaderParts)]
    notes = [note for part in parts for note in part.notes]
    workers = task.train.workers if isinstance(task.train, LoaderParts) else 0
    if settings.loader_workers is None and workers and not isinstance(train, TensorSource):
        workers = 1 if isinstance(train, StreamSource) else workers  # more would read it several times
        settings = replace(settings, loader_workers=workers)
        notes.append(f"loader_workers={workers}, as the DataLoader of task.train says")
    return settings, notes


def _check_layouts(model: nn.Module) -> None:
    """What cannot be laid into shared memory and files is refused before a rank trips over it."""
    held = chain(model.named_parameters(), model.named_buffers())
    sparse = next((name for name, tensor in held if tensor.layout != torch.strided), None)
    if sparse is not None:
        raise BadInput(
            f'the model\'s "{sparse}" is a sparse tensor, which ranks cannot share; register it dense and call '
            "to_sparse() in the forward pass"
        )


def check_length(job: Job) -> None:
    """How many steps there are must be known before the first: a stream may not say."""
    if not isinstance(job.train, StreamSource):
        return
    epochs, workers = job.epochs, job.settings.loader_workers
    if job.endless and job.settings.max_steps is None:
        raise BadInput(
            "task.train is a stream without a length, so the number of steps per epoch is unknown; "
            "give max_steps (--max-steps), or give it a __len__ (samples per epoch)"
        )
    if job.endless and epochs > 1:
        raise BadInput(
            f"task.train is a stream without a length, so {epochs} epochs cannot be told apart; "
            "use epochs=1 with max_steps for the whole fit, or give it a __len__ (samples per epoch)"
        )
    if isinstance(workers, int) and workers > 1:
        raise BadInput(f"a stream is read by one worker process per rank (loader_workers: {workers}); use 0, 1 or auto")


def _build_model(task: Task) -> tuple[Task, nn.Module]:
    """The model, and the task around it. One that was given is copied together with what may refer to it."""
    if isinstance(task.model, nn.Module):
        try:
            model, changes = by_value_copy((task.model, {name: getattr(task, name) for name in REFER_TO_MODEL}))
        except Exception as problem:
            kind, reason = type(task.model).__name__, str(problem).strip().splitlines()[0].removesuffix(" See:")
            raise BadInput(
                f"task.model ({kind}) cannot be sent to the ranks ({reason}); "
                "give the function that makes it instead of the model: model=make_model"
            ) from problem
        return task.replace(model=model, **changes), model
    model = task.model()
    if not isinstance(model, nn.Module):
        raise BadInput(f"task.model made a {type(model).__name__}, not a torch.nn.Module")
    return task, model


def _first_samples(task: Task, train: Source) -> tuple[Any, Any]:
    """As the model gets them, from copies of its own."""
    count = min(2, len(train))
    with seeded(task.seed):
        input, target = by_value_copy(train.gather(torch.arange(count)))
        if task.augment is not None:
            input = by_value_copy(task.augment)(input, torch.arange(count))
    return input, target


def _made(data: Any, name: str) -> Any:
    if callable(data) and not isinstance(data, Dataset | DataLoader | tuple | list):
        try:
            return data()
        except BadInput:
            raise
        except Exception as problem:
            raise BadInput(f"task.{name} failed to make its data: {type(problem).__name__}: {problem}") from problem
    return data
