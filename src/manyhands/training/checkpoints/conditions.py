"""What a fit trains under that a checkpoint of another may differ in: it can go on, but not without a word.

Model, optimizer, batch size and order of the data must be those of the checkpoint (see `fingerprint`). What stands here
may be changed on purpose (another clip, bf16 for the rest), and then the weights are those of neither fit alone.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ...data import nest
from ...data.process_state import seeded
from ...data.stream import StreamSource
from ...strategies.job import Job

PLAIN = (bool, int, float, str, type(None))
LOOKED_AT = 4  # samples, spread over the data


def conditions(job: Job) -> dict[str, Any]:
    """As plain data, written into every checkpoint."""
    settings = job.settings
    return {
        "clip": settings.clip,
        "precision": settings.precision,
        "sync_batchnorm": settings.sync_batchnorm,
        "ema": job.task.ema,
        "loss": _described(job.task.loss),
        "weight": _described(job.task.weight) or (None if job.weight is None else str(job.weight)),
        "augment": _described(job.task.augment),
        "data": _looked_at(job),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for every condition that has changed; what either side does not know is left out."""
    lines = []
    for key, value in now.items():
        old = before.get(key, value)
        if key != "data" and old != value:
            lines.append(f"{key} was {old} and is {value}")
        elif old != value and old is not None and value is not None:
            lines.append("the training samples are not those it was made with")
    return lines


def _described(function: Any) -> str | None:
    """A function by its name and its plain settings; a lambda by the names its code uses."""
    if function is None:
        return None
    inner = getattr(function, "func", function)  # functools.partial
    named = inspect.isroutine(inner) or inspect.isclass(inner)
    name = getattr(inner, "__qualname__", "") if named else type(inner).__qualname__
    options = {**getattr(function, "keywords", {}), **({} if named else getattr(inner, "__dict__", {}))}
    plain = [
        f"{key}={value!r}"
        for key, value in sorted(options.items())
        if isinstance(value, PLAIN) and not key.startswith("_") and key != "training"
    ]
    uses = list(inner.__code__.co_names) if "<lambda>" in name else []
    return f"{name}({', '.join([*uses, *plain])})" if uses or plain else name


def _looked_at(job: Job) -> str | None:
    """A digest of a few samples; None where they cannot be asked for by number or are never the same twice."""
    if isinstance(job.train, StreamSource):
        return None
    last = len(job.train) - 1
    places = torch.tensor(sorted({last * part // (LOOKED_AT - 1) for part in range(LOOKED_AT)}))
    try:
        first, second = (_digest(job, places) for _ in range(2))
    except Exception:  # a sample that cannot be read is reported by whoever trains on it
        return None
    return first if first == second else None


def _digest(job: Job, places: torch.Tensor) -> str:
    digest = hashlib.sha256()
    with seeded(job.task.seed):
        for tensor in nest.leaves(list(job.train.gather(places))):
            plain = tensor.detach().cpu().contiguous()
            digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
