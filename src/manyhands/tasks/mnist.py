"""MNIST: 28x28 handwritten digits, random affine augmentation; LeNet.

`mnist:slow` loads the way the published study did, one sample at a time: read an image, turn and shift it with PIL
(with torch where PIL is not installed), make a tensor of it, and stack the tensors of a batch. Its `load` phase
against that of `mnist` is the study's finding: what looked like slow training was a slow loader.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from ..data import augment, files
from ..schedules import linear
from ..task import Task
from .models import lenet

AFFINE = augment.Affine(degrees=10, translate=0.07, scale=(0.9, 1.1), shear=5)


def make(slow: bool = False) -> Task:
    """`slow` augments sample by sample in the loader instead of whole batches in the step."""
    return Task(
        model=partial(lenet, mean=0.1307, std=0.3081),
        train=one_by_one if slow else partial(images, "train"),
        test=partial(images, "test"),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.02, momentum=0.9),
        schedule=linear(warmup=0.05),
        augment=None if slow else AFFINE,
        batch_size=32,
        epochs=3,
        name="mnist",
    )


def images(split: str) -> tuple[Tensor, Tensor]:
    """The images (uint8, count x 1 x 28 x 28) and labels of a split."""
    train, test = files.mnist()
    return train if split == "train" else test


def one_by_one() -> OneByOne:
    return OneByOne(*images("train"))


class OneByOne(Dataset):
    """The training set sample by sample, each turned, scaled, leant and shifted at random when it is asked for."""

    def __init__(self, images: Tensor, labels: Tensor):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        matrix = random_inverse(*self.images.shape[-2:])
        return move(self.images[index, 0], matrix)[None].float() / 255, int(self.labels[index])


def random_inverse(height: int, width: int) -> list[float]:
    """Six numbers a..f: pixel (x, y) of the result comes from (a x + b y + c, d x + e y + f); ranges as in AFFINE."""
    turn, size, lean, right, down = torch.rand(5).tolist()
    angle = math.radians(10 * (2 * turn - 1))
    scale = 0.9 + 0.2 * size
    tangent = math.tan(math.radians(5 * (2 * lean - 1)))
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    a, b, d, e = cos + tangent * sin, sin - tangent * cos, -sin, cos
    # the centre of the result, moved by the shift, comes from the centre of the image
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    to_x = middle_x + 0.07 * width * (2 * right - 1)
    to_y = middle_y + 0.07 * height * (2 * down - 1)
    return [a, b, middle_x - a * to_x - b * to_y, d, e, middle_y - d * to_x - e * to_y]


def move(image: Tensor, matrix: list[float]) -> Tensor:
    """One grey image (uint8, height x width) moved by an inverse affine map, between pixels by interpolation."""
    try:
        from PIL import Image
    except ImportError:
        return move_with_torch(image, matrix)
    a, b, c, d, e, f = matrix
    centres = (a, b, c + 0.5 - (a + b) / 2, d, e, f + 0.5 - (d + e) / 2)  # PIL counts from the pixels' corners
    method, between = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    moved = Image.fromarray(image.numpy()).transform((image.shape[1], image.shape[0]), method, centres, between)
    return torch.frombuffer(bytearray(moved.tobytes()), dtype=torch.uint8).view(image.shape)


def move_with_torch(image: Tensor, matrix: list[float]) -> Tensor:
    height, width = image.shape
    a, b, c, d, e, f = matrix
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    source_x, source_y = a * x + b * y + c, d * x + e * y + f
    source = torch.stack(
        [(2 * source_x + 1) / width - 1, (2 * source_y + 1) / height - 1], dim=-1
    )  # -1..1 over the image
    moved = F.grid_sample(image[None, None].float(), source[None], align_corners=False)
    return moved[0, 0].round().to(torch.uint8)


task = make()
