"""Convolutions with each kind of normalisation, and residual connections that fit them.

batch   BatchNorm over the rank's batch
ghost   BatchNorm over parts of 32 samples: the statistics of small batches, however large the batch is
group   GroupNorm over groups of 8 channels: knows nothing of other samples, so any sharding gives the same result
none    no statistics of activations at all. What makes this train:
        the weights are standardised (each filter has zero mean and unit norm, times a learnt gain), so the size of
        the activations stays put while training; the gain starts at sqrt(2), which makes up for the half that a
        ReLU takes; and a residual branch starts at zero (its last gain is 0), so a deep net begins as a shallow one.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Literal["batch", "group", "none", "ghost"]

GHOST_SAMPLES = 32
GROUP_CHANNELS = 8


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    depthwise: bool = False,
    norm: Norm = "batch",
    gain: float = math.sqrt(2),
) -> nn.Module:
    """A padded convolution and its normalisation; `gain` is what norm=none starts with (1 where no ReLU follows)."""
    groups = inputs if depthwise else 1
    if norm == "none":
        return StandardisedConv2d(inputs, outputs, kernel, stride, groups, gain)
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, _normalisation(norm, outputs))


def _normalisation(norm: Norm, channels: int) -> nn.Module:
    if norm == "group":
        return nn.GroupNorm(max(1, channels // GROUP_CHANNELS), channels)
    return GhostBatchNorm2d(channels) if norm == "ghost" else nn.BatchNorm2d(channels)


class GhostBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm whose statistics come from at most 32 samples at a time."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return torch.cat([super(GhostBatchNorm2d, self).forward(part) for part in input.split(GHOST_SAMPLES)])


class StandardisedConv2d(nn.Module):
    """A convolution with weights gain * (w - mean) / norm, per filter: activations keep their size without statistics.

    The nine weights of a depthwise filter keep their mean: without it a filter could not blur, only differentiate.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int, gain: float):
        super().__init__()
        self.stride, self.padding, self.groups = stride, kernel // 2, groups
        self.weight = nn.Parameter(torch.randn(outputs, inputs // groups, kernel, kernel))
        self.gain = nn.Parameter(torch.full((outputs,), gain))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.flatten(1)
        if self.groups == 1:
            weight = weight - weight.mean(1, keepdim=True)
        weight = F.normalize(weight, dim=1, eps=1e-4) * self.gain[:, None]
        return F.conv2d(input, weight.view_as(self.weight), self.bias, self.stride, self.padding, groups=self.groups)

    def extra_repr(self) -> str:
        outputs, inputs, kernel, _ = self.weight.shape
        return f"{inputs * self.groups}, {outputs}, kernel={kernel}, stride={self.stride}, groups={self.groups}"


class Residual(nn.Module):
    """shortcut(x) + branch(x), then `after` where there is one."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None):
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, input: Tensor) -> Tensor:
        return self.after(self.shortcut(input) + self.branch(input))
