"""The task's optimizer on a rank or server that holds a part of the model.

The factory gets all named parameters, as it would under `single`, so that its groups are the same everywhere: names it
looks for are there, and so are attributes and shapes. Those held elsewhere are without memory, and leave again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.optim import Optimizer

from ...model.optimizers import stand_in
from ..job import Job, trained_parameters


def part_optimizer(job: Job, held: Mapping[str, nn.Parameter]) -> Optimizer:
    """An optimizer of the held parameters; groups of which nothing is held here stay, empty."""
    everyone = [(name, held[name] if name in held else _absent(p)) for name, p in trained_parameters(job.model)]
    optimizer = job.task.optimizer(everyone)
    kept = {id(parameter) for parameter in held.values()}
    for group in optimizer.param_groups:
        own = [id(parameter) in kept for parameter in group["params"]]
        for parameter, keep in zip(group["params"], own, strict=True):
            if not keep:
                optimizer.state.pop(parameter, None)
        for key in ("params", "param_names"):
            if key in group:  # in place: the optimizer may have kept the list
                group[key][:] = [item for item, keep in zip(group[key], own, strict=True) if keep]
    return optimizer


def _absent(parameter: nn.Parameter) -> nn.Parameter:
    """The same shape and attributes, and memory for one number."""
    return stand_in(parameter, torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape))
