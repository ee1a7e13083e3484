"""Rounding that an optimizer makes steps of.

A model may not depend on some of its parameters: keys of attention all shifted alike give the same weights, so the gradient
of their bias is zero, and what is computed for it is rounding alone. SGD hardly moves for it. Adam divides every gradient
by its size: another order of the same sums then ends in other weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ...model.optimizers import stand_in
from ...strategies.job import Job, trained_parameters
from .passes import Pass, gradients_of

NOISY = 0.1  # of a gradient's number: what is rounding
MANY = 1e-3  # of a parameter's numbers: a few come close to zero by chance
APART = 1e-6  # of the largest weight: moves that differ so much end in other weights


def rounding_alone(job: Job, whole: Pass, parts: Sequence[Pass]) -> str | None:
    """A parameter that one update moves elsewhere, from the whole batch and from its parts, where these agree."""
    parameters = dict(trained_parameters(job.model))
    for name, mine, total in gradients_of(whole, parts):
        noisy = int(((mine - total).abs() > NOISY * mine.abs()).sum())
        if noisy > max(1, MANY * mine.numel()):
            one, other = (_after_update(job, name, parameters[name], gradient) for gradient in (mine, total))
            if float((one - other).abs().max()) > APART * max(float(one.abs().max()), 1e-3):
                return name
    return None


def _after_update(job: Job, name: str, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    tried = stand_in(parameter, parameter.detach().clone())
    optimizer = job.task.optimizer([(name, tried)])
    tried.grad = gradient.to(tried.device, tried.dtype, copy=True)
    optimizer.step()
    return tried.detach()
