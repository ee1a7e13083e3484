"""What models of images begin with, and the smallest of them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.fx import wrap


class Normalise(nn.Module):
    """Images as they are kept (uint8 0..255, or float 0..1) to floats of about zero mean and unit deviation.

    It is the first layer of a model, so training, testing and use treat images alike. One mean and one deviation
    serve all channels: plain numbers instead of buffers, which data parallel strategies would send every step.
    """

    def __init__(self, mean: float, std: float):
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, images: Tensor) -> Tensor:
        return normalise(images, self.mean, self.std)

    def extra_repr(self) -> str:
        return f"mean={self.mean}, std={self.std}"


def normalise(images: Tensor, mean: float, std: float) -> Tensor:
    scale = 1.0 if images.is_floating_point() else 255.0
    return (images - mean * scale) * (1 / (std * scale))


wrap("normalise")  # the look at the dtype stays one node when a model is traced


def lenet(mean: float = 0.13, std: float = 0.31, classes: int = 10) -> nn.Sequential:
    """LeNet-5 for 28x28 grey images, with ReLU and max pooling: 61,706 parameters."""
    return nn.Sequential(
        Normalise(mean, std),
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
