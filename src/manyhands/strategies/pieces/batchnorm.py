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


class GlobalBatchNorm(nn.BatchNorm1d):
    """A BatchNorm, of inputs with any number of dimensions, that sees the samples of all ranks."""

    empty = False  # this rank's sample is borrowed and must not count

    def _check_input_dim(self, input: Tensor) -> None:
        return

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
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
        output = centred * torch.rsqrt(variance + self.eps).view(shape)
        return output if self.weight is None else output * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), share)


def share_batchnorm(model: nn.Module) -> None:
    """Let every BatchNorm of the model see all ranks; names and values stay."""
    for module in model.modules():
        if isinstance(module, BATCHNORMS):
            module.__class__ = GlobalBatchNorm


def mark_empty(model: nn.Module, empty: bool) -> None:
    for module in model.modules():
        if isinstance(module, GlobalBatchNorm):
            module.empty = empty
