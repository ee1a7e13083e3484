"""Convolutions with each kind of normalisation, and residual connections that fit them.

    batch    BatchNorm over the rank's batch
    ghost    BatchNorm over parts of 32 samples: the statistics of small batches, however large the batch is
    group    GroupNorm over groups of 16 channels: knows nothing of other samples, so any sharding gives the same result
    none     no statistics of activations at all: each channel has a learnt gain and a bias
    removed  nothing: the convolutions of `batch` alone, with the weights that rely on BatchNorm

With `group` and `none` images of the training set take the place of batch statistics once, before the first step
(`start_from`): every gain and bias is set so that each channel has mean 0 and variance 1 on them. He's weights alone keep
the variance of a layer, but not what tells one image from the next: with ReLU's positive mean all images move the same way,
and after 20 layers they look alike (docs/tasks.md has the figures).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

Norm = Literal["batch", "group", "none", "ghost", "removed"]

SAMPLE_NORMS = ("group", "none")  # a sample's output does not depend on other samples; gains start from images
GHOST_SAMPLES = 32
GROUP_CHANNELS = 16
BRANCH_SHARE = 0.25  # deviation at the end of a residual branch: 17 of them together start below what they are added to


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
    share = BRANCH_SHARE if ends_branch else 1.0
    if norm == "none":
        return ScaledConv2d(inputs, outputs, kernel, stride, groups, after_relu, share)
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    if norm == "removed":
        return conv
    if norm == "group":
        return nn.Sequential(conv, SampleNorm2d(outputs, share))
    return nn.Sequential(conv, nn.BatchNorm2d(outputs) if norm == "batch" else GhostBatchNorm2d(outputs))


class GhostBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm whose statistics come from at most 32 samples at a time."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return torch.cat([super(GhostBatchNorm2d, self).forward(part) for part in input.split(GHOST_SAMPLES)])


class SampleNorm2d(nn.GroupNorm):
    """GroupNorm over groups of 16 channels, whose gains start at `share`."""

    def __init__(self, channels: int, share: float = 1.0):
        super().__init__(math.gcd(channels, max(1, channels // GROUP_CHANNELS)), channels)
        self.share = share
        nn.init.constant_(self.weight, share)

    def forward(self, input: Tensor) -> Tensor:
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


def group_norm(input: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (_group_norm_in_place if input.is_cuda else F.group_norm)(input, groups, weight, bias, eps)


wrap("group_norm")  # the look at the device stays one node when a model is traced


def _group_norm_in_place(input: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """torch's kernel for GPUs takes the layout of channels_last apart and computes in fp32 under autocast; this does not."""
    count, channels = input.shape[:2]
    parts = input.unflatten(1, (groups, channels // groups))
    mean = parts.mean((2, 3, 4), dtype=torch.float32)
    square = torch.linalg.vector_norm(parts, dim=(2, 3, 4), dtype=torch.float32).square() / parts[0, 0].numel()
    rate = (square - mean.square()).clamp(min=0).add(eps).rsqrt()
    each = (count, groups, channels // groups)
    scale = weight * rate[:, :, None].expand(each).flatten(1)
    shift = bias - mean[:, :, None].expand(each).flatten(1) * scale
    return torch.addcmul(shift.to(input.dtype)[:, :, None, None], input, scale.to(input.dtype)[:, :, None, None])


class ScaledConv2d(nn.Module):
    """A convolution with a learnt gain per channel and a bias; He's weights and a gain of `share` at first."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, groups: int, after_relu: bool, share: float
    ):
        super().__init__()
        self.stride, self.padding, self.groups, self.share = stride, kernel // 2, groups, share
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, kernel, kernel))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu" if after_relu else "linear")
        self.gain = nn.Parameter(torch.full((outputs,), share))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight * self.gain[:, None, None, None]
        return F.conv2d(input, weight, self.bias, self.stride, self.padding, groups=self.groups)

    def extra_repr(self) -> str:
        outputs, inputs, kernel, _ = self.weight.shape
        return f"{inputs * self.groups}, {outputs}, kernel={kernel}, stride={self.stride}, groups={self.groups}"


@torch.no_grad()
def start_from(model: nn.Module, images: Tensor) -> None:
    """Set gains and biases, layer by layer, so that these images give every channel mean 0 and the deviation `share`."""

    def settle(layer: ScaledConv2d | SampleNorm2d, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        deviation, mean = torch.std_mean(output, (0, 2, 3))
        factor = torch.where(
            deviation > 1e-4, layer.share / deviation, 1.0
        )  # a channel that is the same everywhere stays
        (layer.gain if isinstance(layer, ScaledConv2d) else layer.weight).mul_(factor)
        layer.bias.sub_(mean).mul_(factor)
        return (output - mean[:, None, None]) * factor[:, None, None]

    layers = [layer for layer in model.modules() if isinstance(layer, ScaledConv2d | SampleNorm2d)]
    hooks = [layer.register_forward_hook(settle) for layer in layers]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()


class Residual(nn.Module):
    """shortcut(x) + branch(x), then `after` where there is one."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None):
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, input: Tensor) -> Tensor:
        return self.after(self.shortcut(input) + self.branch(input))
