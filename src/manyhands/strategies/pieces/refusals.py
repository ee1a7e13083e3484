"""Checks and refusals that several strategies share."""

from __future__ import annotations

from torch import nn

from ...errors import BadInput
from ..contract import Strategy, refuse
from ..job import Job, trained_parameters
from .rank_model import spread_over_devices


def check_choices(strategy: Strategy, **choices: tuple[str, ...]) -> None:
    """Options that are one of a few words, and the number of ranks."""
    for key, known in choices.items():
        value = getattr(strategy, key)
        if value not in known:
            raise BadInput(f'{strategy.name}:{key} must be one of {", ".join(known)} (found "{value}")')
    if strategy.ranks < 1:
        raise BadInput(f"{strategy.name} needs at least 1 rank (found {strategy.ranks})")


def check_shareable(strategy: Strategy, job: Job) -> None:
    """Weights that lie in host memory cannot belong to a model that placed itself on devices."""
    if spread_over_devices(job.model):
        raise refuse(
            strategy, "shares weights in host memory; a model that places itself on several devices cannot be shared"
        )


def check_unwritten(strategy: Strategy, job: Job) -> None:
    """Where ranks read trained weights from one place, what their own forward passes write there would be lost."""
    if written := next((name for name, _ in trained_parameters(job.model) if name in job.proof.writes), None):
        raise refuse(
            strategy, f'takes trained weights from one place and drops what a pass writes into "{written}"; use ddp'
        )


def sparse_layer(model: nn.Module) -> str | None:
    """The name of the first layer whose gradients are sparse."""
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            return name
    return None
