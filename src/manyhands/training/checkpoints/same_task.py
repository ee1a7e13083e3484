"""What a fit must have in common with the checkpoint it goes on from; what may differ is in conditions.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...errors import BadInput
from ...strategies.job import Job
from .checkpoint import CONDITIONS, Checkpoint


def fingerprint(job: Job) -> dict[str, Any]:
    """What must be the same for a checkpoint to fit: the model by name, the data's order, the kind of optimizer."""
    task = job.task
    print_: dict[str, Any] = {
        "name": task.name,
        "weights": {
            name: [dtype_name(value), list(value.shape)]
            for name, value in job.model.state_dict().items()
            if isinstance(value, Tensor)
        },
        "optimizer": _kind(task.optimizer),
        "batch_size": task.batch_size,
        "seed": task.seed,
        "samples": job.order.samples,
        "accumulate": job.order.accumulate,
    }
    if job.order.drop_last:
        print_["drop_last"] = True
    if task.schedule is not None:
        print_["epochs"] = job.epochs  # the schedule spans them
        if job.endless:
            print_["max_steps"] = job.settings.max_steps
    return print_


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _kind(factory: Any) -> str:
    inner = getattr(factory, "func", factory)  # functools.partial
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def refuse_other_task(checkpoint: Checkpoint, task: Mapping[str, Any]) -> None:
    """A checkpoint of another task or model is bad input; the first difference says which."""
    difference = first_difference(checkpoint.task, task)
    if difference:
        raise BadInput(
            f"the checkpoint {checkpoint.path} belongs to another task: {difference}; "
            "resume with the task it was made with, or use another run folder"
        )


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    for key in dict.fromkeys([*new, *old]):
        if key == CONDITIONS:
            continue  # they may differ
        before, now = old.get(key), new.get(key)
        if before != now:
            return _weight_difference(before, now) if key == "weights" else f"{key} was {before!r} and is {now!r}"
    return None


def _weight_difference(before: Any, now: Any) -> str:
    for name in dict.fromkeys([*now, *before]):
        if name not in now or name not in before:
            return f'only {"the checkpoint" if name in before else "the model"} has the weight "{name}"'
        if now[name] != before[name]:
            return f'weight "{name}" was {_form(before[name])} and is {_form(now[name])}'
    return "the weights differ"


def _form(entry: Any) -> str:
    return f"{entry[0]} {tuple(entry[1])}"
