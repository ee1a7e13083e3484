"""MobileNetV2 for 32x32 images (Sandler et al. 2018): the first layers keep the size, strides come later.

Where a block keeps the size and changes its channels, a 1x1 convolution is its shortcut, as in the code that published
figures for CIFAR-10 come from. Without batch statistics (norm=group, norm=none) every block has a shortcut, behind a mean
over 2x2 pixels where it halves the size, and SiLU takes the place of ReLU6, which cuts signals of any size off at 6. With
norm=group the narrow input of a block is normalised, not the six times wider layers inside.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from .images import Normalise
from .norms import SAMPLE_NORMS, Norm, Residual, SampleNorm2d, convolution

STAGES = [  # expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


def mobilenetv2(
    norm: Norm = "batch", width: float = 1.0, classes: int = 10, mean: float = 0.473, std: float = 0.251
) -> nn.Sequential:
    """A chain of 21 blocks; `width` multiplies the channels. At width 1 it has 2,295,834 parameters."""
    channels = _multiple_of_8(32 * width)
    blocks: list[nn.Module] = [
        nn.Sequential(Normalise(mean, std), _convolution(3, channels, norm=norm, after_relu=False), _activation(norm))
    ]
    for expansion, stage_width, count, first_stride in STAGES:
        outputs = _multiple_of_8(stage_width * width)
        for number in range(count):
            blocks.append(_block(channels, outputs, expansion, first_stride if number == 0 else 1, norm))
            channels = outputs
    last = _multiple_of_8(1280 * max(1.0, width))
    blocks += [
        nn.Sequential(
            *_before(channels, norm), _convolution(channels, last, 1, norm=norm, after_relu=False), _activation(norm)
        ),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(last, classes),
    ]
    return nn.Sequential(*blocks)


def _block(inputs: int, outputs: int, expansion: int, stride: int, norm: Norm) -> nn.Module:
    """Widen, filter each channel on its own, narrow again; the narrow ends are linear and joined by a shortcut."""
    hidden = inputs * expansion
    joined = stride == 1 or norm in SAMPLE_NORMS
    layers = _before(inputs, norm)
    if expansion != 1:
        layers += [_convolution(inputs, hidden, 1, norm=norm, after_relu=False), _activation(norm)]
    layers += [
        _convolution(hidden, hidden, norm=norm, after_relu=True, stride=stride, depthwise=True),
        _activation(norm),
        _convolution(hidden, outputs, 1, norm=norm, after_relu=True, ends_branch=joined),
    ]
    branch = nn.Sequential(*layers)
    if not joined or (stride == 1 and inputs == outputs):
        return Residual(branch) if joined else branch
    across = _convolution(inputs, outputs, 1, norm=norm, after_relu=False)
    return Residual(branch, across if stride == 1 else nn.Sequential(nn.AvgPool2d(stride), across))


def _activation(norm: Norm) -> nn.Module:
    return nn.SiLU() if norm in SAMPLE_NORMS else nn.ReLU6(inplace=True)


def _before(channels: int, norm: Norm) -> list[nn.Module]:
    return [SampleNorm2d(channels)] if norm == "group" else []


def _convolution(inputs: int, outputs: int, kernel: int = 3, *, norm: Norm, **options: Any) -> nn.Module:
    """With norm=group the blocks have their norms outside of the convolutions."""
    return convolution(inputs, outputs, kernel, norm="none" if norm == "group" else norm, **options)


def _multiple_of_8(channels: float) -> int:
    """Rounded to a multiple of 8, but never by more than a tenth down."""
    rounded = max(8, math.floor(channels / 8 + 0.5) * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
