"""MobileNetV2 for 32x32 images (Sandler et al. 2018): the first layers keep the size, strides come later."""

from __future__ import annotations

import math

from torch import nn

from .images import Normalise
from .norms import Norm, Residual, convolution

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
    """A chain of 21 blocks; `width` multiplies the channels. At width 1 it has 2,236,682 parameters."""
    channels = _multiple_of_8(32 * width)
    blocks: list[nn.Module] = [
        nn.Sequential(
            Normalise(mean, std), convolution(3, channels, norm=norm, after_relu=False), nn.ReLU6(inplace=True)
        )
    ]
    for expansion, stage_width, count, first_stride in STAGES:
        outputs = _multiple_of_8(stage_width * width)
        for number in range(count):
            blocks.append(_block(channels, outputs, expansion, first_stride if number == 0 else 1, norm))
            channels = outputs
    last = _multiple_of_8(1280 * max(1.0, width))
    blocks += [
        nn.Sequential(convolution(channels, last, 1, norm=norm, after_relu=False), nn.ReLU6(inplace=True)),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(last, classes),
    ]
    return nn.Sequential(*blocks)


def _block(inputs: int, outputs: int, expansion: int, stride: int, norm: Norm) -> nn.Module:
    """Widen, filter each channel on its own, narrow again; the narrow ends are linear and joined where they match."""
    hidden = inputs * expansion
    joined = stride == 1 and inputs == outputs
    layers: list[nn.Module] = []
    if expansion != 1:
        layers += [convolution(inputs, hidden, 1, norm=norm, after_relu=False), nn.ReLU6(inplace=True)]
    layers += [
        convolution(hidden, hidden, norm=norm, after_relu=True, stride=stride, depthwise=True),
        nn.ReLU6(inplace=True),
        convolution(hidden, outputs, 1, norm=norm, after_relu=True, ends_branch=joined),
    ]
    branch = nn.Sequential(*layers)
    return Residual(branch) if joined else branch


def _multiple_of_8(channels: float) -> int:
    """Rounded to a multiple of 8, but never by more than a tenth down."""
    rounded = max(8, math.floor(channels / 8 + 0.5) * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
