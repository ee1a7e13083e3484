"""A rank's own model: put on its device, called in the asked-for arithmetic, and its weights by name."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ...world.rank import Rank
from ..job import Job


def place_model(job: Job, rank: Rank) -> nn.Module:
    """The rank's own model on its device, in training mode; one that placed itself on devices is left there."""
    model = job.model
    places = {parameter.device for parameter in model.parameters()}
    if len(places) <= 1 and places <= {torch.device("cpu")}:
        model = model.to(rank.device)
    if job.settings.compile:
        compile_whole(model)
    return model.train()


def compile_whole(model: nn.Module) -> None:
    """torch's compiler begins at the first frame that is not torch's own: of a model that is an nn.Sequential it would compile
    every child by itself, and give up after the eighth of a kind. So its forward gets a frame of ours."""
    if type(model).forward.__module__.startswith("torch."):
        model.forward = MethodType(_forward, model)
    model.compile()


def _forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return type(model).forward(model, *args, **kwargs)


def spread_over_devices(model: nn.Module) -> bool:
    """Whether the model put its own parts on several devices."""
    return len({parameter.device for parameter in model.parameters()}) > 1


def autocast(job: Job, device: torch.device) -> AbstractContextManager[Any]:
    """The arithmetic the settings ask for."""
    if job.settings.precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, as copies on the CPU."""
    return {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
