"""BatchNorm over the global batch: mean and variance from every rank's samples, weighted by their true number.

Two sums travel a layer (the mean first, then the squares around it, which loses no digits), and the
gradient flows back through both. torch's own SyncBatchNorm does this on GPUs alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...model.torch_internals import BATCHNORMS
from ...world.rank import Rank
from ..job import Job


class _GlobalSum(torch.autograd.Function):
    """Sum over ranks; the gradient of a sum that everyone uses is the sum of everyone's gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class GlobalForward:
    """The forward pass of a BatchNorm, of inputs with any number of dimensions, that sees the samples of all ranks."""

    def __init__(self, module: Any):
        self.module = module
        self.empty = False  # this rank's sample is borrowed and must not count

    def __call__(self, input: Tensor) -> Tensor:
        module = self.module
        if not module.training:
            found: Tensor = type(module).forward(module, input)
            return found
        dims = [0, *range(2, input.dim())]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        share = 0.0 if self.empty else 1.0
        number = torch.full((1,), share * input.numel() / input.shape[1], dtype=input.dtype, device=input.device)
        sums = _GlobalSum.apply(torch.cat([input.sum(dims) * share, number]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = input - mean.view(shape)
        variance = _GlobalSum.apply((centred * centred).sum(dims) * share) / count
        self._remember(mean.detach(), variance.detach(), count)
        output = centred * torch.rsqrt(variance + module.eps).view(shape)
        return output if module.weight is None else output * module.weight.view(shape) + module.bias.view(shape)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        module = self.module
        if module.running_mean is None or module.running_var is None:
            return
        module.num_batches_tracked.add_(1)
        share = module.momentum if module.momentum is not None else 1.0 / float(module.num_batches_tracked)
        module.running_mean.lerp_(mean, share)
        module.running_var.lerp_(variance * count / (count - 1).clamp(min=1), share)


def share_batchnorm(model: nn.Module) -> None:
    """Let every BatchNorm of the model see all ranks.

    Only what a layer calls is replaced, not the layer, as torch's SyncBatchNorm does: hooks on it stay, and so do other
    references to it that the model may hold.
    """
    for module in model.modules():
        if isinstance(module, BATCHNORMS):
            module.forward = GlobalForward(module)


def mark_empty(model: nn.Module, empty: bool) -> None:
    for module in model.modules():
        if isinstance(module.forward, GlobalForward):
            module.forward.empty = empty


def average_buffers(rank: Rank, model: nn.Module) -> dict[str, Tensor]:
    """BatchNorm's statistics, the mean over ranks (counters: the largest), on rank 0; every process takes part."""
    trained = dict(model.named_parameters(remove_duplicate=False))
    mine = {name: value.detach().cpu() for name, value in model.state_dict().items() if name not in trained}
    everyone = rank.gather(None if rank.serves else mine)
    if everyone is None:
        return {}
    known = [item for item in everyone if item is not None]
    return {name: _joined([item[name] for item in known]) for name in mine}


def _joined(values: list[Tensor]) -> Tensor:
    stacked = torch.stack(values)
    if not values[0].is_floating_point():
        return stacked.amax(0) if values[0].dtype != torch.bool else values[0]
    return stacked.double().mean(0).to(values[0].dtype)


def average_notes(job: Job, rank: Rank) -> list[str]:
    """For the record of a strategy whose ranks keep statistics of their own."""
    if not (job.has_batchnorm and rank.leads) or job.settings.sync_batchnorm:
        return []
    return ["BatchNorm statistics are kept by each rank and averaged where weights are taken"]
