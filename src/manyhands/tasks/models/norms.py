"""Convolutions with each kind of normalisation, and residual connections that fit them.

    batch   BatchNorm over the rank's batch
    ghost   BatchNorm over parts of 32 samples: the statistics of small batches, however large the batch is
    group   GroupNorm over groups of 8 channels: knows nothing of other samples, so any sharding gives the same result
    none    no statistics of activations at all

What takes the place of batch statistics: the weights are standardised (each filter has zero mean and unit
norm), so the size of activations stays put while the weights move; and the last gain of a residual branch starts at
zero, so a deep net begins as a shallow one. With `none` each filter also has a learnt gain and a bias; gains start
where they keep the variance of activations at one: at 1 after a linear layer, after a ReLU at what the ReLU took.
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
RELU_SQUARE = 1 / 2  # mean square and variance of a ReLU's output, where its input has mean 0 and variance 1
RELU_VARIANCE = (1 - 1 / math.pi) / 2


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    *,
    norm: Norm,
    after_relu: bool,
    stride: int = 1,
    depthwise: bool = False,
    ends_branch: bool = False,
) -> nn.Module:
    """A padded convolution and its normalisation; `ends_branch` marks the last one of a residual branch."""
    groups = inputs if depthwise else 1
    if norm == "none":
        gain = first_gain(after_relu, depthwise, ends_branch)
        return StandardisedConv2d(inputs, outputs, kernel, stride, groups, gain)
    if norm == "group":
        scale = nn.GroupNorm(max(1, outputs // GROUP_CHANNELS), outputs)
        nn.init.constant_(scale.weight, 0.0 if ends_branch else 1.0)
        return nn.Sequential(StandardisedConv2d(inputs, outputs, kernel, stride, groups, None), scale)
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(outputs) if norm == "batch" else GhostBatchNorm2d(outputs))


def first_gain(after_relu: bool, depthwise: bool, ends_branch: bool) -> float:
    """A filter of zero mean sees the variance of its input, a depthwise one, which keeps its mean, the mean square."""
    if ends_branch:
        return 0.0
    if not after_relu:
        return 1.0
    return (RELU_SQUARE if depthwise else RELU_VARIANCE) ** -0.5


class GhostBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm whose statistics come from at most 32 samples at a time."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return torch.cat([super(GhostBatchNorm2d, self).forward(part) for part in input.split(GHOST_SAMPLES)])


class StandardisedConv2d(nn.Module):
    """A convolution with weights (w - mean) / norm, per filter; where `gain` is set also a learnt gain and a bias.

    The nine weights of a depthwise filter keep their mean: without it a filter could not blur, only differentiate.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int, gain: float | None):
        super().__init__()
        self.stride, self.padding, self.groups = stride, kernel // 2, groups
        self.weight = nn.Parameter(torch.randn(outputs, inputs // groups, kernel, kernel))
        if (
            gain is None
        ):  # a step turns a filter by its rate over its norm squared, and nothing else here learns its size
            nn.init.normal_(self.weight, std=self.weight[0].numel() ** -0.5)
        self.gain = self.bias = None
        if gain is not None:
            self.gain = nn.Parameter(torch.full((outputs,), gain))
            self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.flatten(1)
        if self.groups == 1:
            weight = weight - weight.mean(1, keepdim=True)
        weight = F.normalize(weight, dim=1, eps=1e-4)
        if self.gain is not None:
            weight = weight * self.gain[:, None]
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
