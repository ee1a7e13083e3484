"""Residual networks for 32x32 images (He et al. 2015): ResNet-20 and ResNet-50 as chains of blocks."""

from __future__ import annotations

from torch import nn

from .images import Normalise
from .norms import Norm, Residual, convolution


def resnet20(
    norm: Norm = "batch", width: float = 1.0, classes: int = 10, mean: float = 0.473, std: float = 0.251
) -> nn.Sequential:
    """Three stages of three basic blocks, 16 to 64 channels."""
    widths = [_multiple_of_8(channels * width) for channels in (16, 32, 64)]
    start = nn.Sequential(
        Normalise(mean, std), convolution(3, widths[0], norm=norm, after_relu=False), nn.ReLU(inplace=True)
    )
    blocks: list[nn.Module] = [start]
    channels = widths[0]
    for stage, outputs in enumerate(widths):
        for number in range(3):
            blocks.append(_basic(channels, outputs, 2 if stage > 0 and number == 0 else 1, norm))
            channels = outputs
    return nn.Sequential(*blocks, _end(), nn.Linear(channels, classes))


def resnet50(
    norm: Norm = "batch", width: float = 1.0, classes: int = 10, mean: float = 0.473, std: float = 0.251
) -> nn.Sequential:
    """Sixteen bottleneck blocks, 256 to 2048 channels; the first convolution is 3x3 and nothing is pooled early."""
    narrow = _multiple_of_8(64 * width)
    start = nn.Sequential(
        Normalise(mean, std), convolution(3, narrow, norm=norm, after_relu=False), nn.ReLU(inplace=True)
    )
    blocks: list[nn.Module] = [start]
    channels = narrow
    for stage, count in enumerate((3, 4, 6, 3)):
        hidden = narrow * 2**stage
        for number in range(count):
            blocks.append(_bottleneck(channels, hidden, 2 if stage > 0 and number == 0 else 1, norm))
            channels = 4 * hidden
    return nn.Sequential(*blocks, _end(), nn.Linear(channels, classes))


def _basic(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module:
    branch = nn.Sequential(
        convolution(inputs, outputs, norm=norm, after_relu=True, stride=stride),
        nn.ReLU(inplace=True),
        convolution(outputs, outputs, norm=norm, after_relu=True, ends_branch=True),
    )
    return Residual(branch, _shortcut(inputs, outputs, stride, norm), nn.ReLU())


def _bottleneck(inputs: int, hidden: int, stride: int, norm: Norm) -> nn.Module:
    outputs = 4 * hidden
    branch = nn.Sequential(
        convolution(inputs, hidden, 1, norm=norm, after_relu=True),
        nn.ReLU(inplace=True),
        convolution(hidden, hidden, norm=norm, after_relu=True, stride=stride),
        nn.ReLU(inplace=True),
        convolution(hidden, outputs, 1, norm=norm, after_relu=True, ends_branch=True),
    )
    return Residual(branch, _shortcut(inputs, outputs, stride, norm), nn.ReLU())


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module | None:
    """Nothing where the shapes match, else a 1x1 convolution."""
    if stride == 1 and inputs == outputs:
        return None
    return convolution(inputs, outputs, 1, norm=norm, after_relu=True, stride=stride)


def _end() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _multiple_of_8(channels: float) -> int:
    return max(8, round(channels / 8) * 8)
