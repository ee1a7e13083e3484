"""MNIST: 28x28 handwritten digits, random affine augmentation; LeNet.

`mnist:slow` loads the way the published study did, one sample at a time, with the steps of torchvision's
`RandomAffine`, `ToTensor` and `Normalize` on a PIL image; the loader stacks the samples of a batch. Its `load` phase
against that of `mnist` is the study's finding: what looked like slow training was a slow loader. `affine=no` leaves the
images where they are, in both ways of loading; `drawn` takes the images of `glyphs`, for machines without the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from ..data import augment, files
from ..schedules import linear
from ..task import Task
from . import glyphs
from .models import lenet

DEGREES, SHIFT, SCALE, LEAN = 10.0, 0.07, (0.9, 1.1), 5.0
AFFINE = augment.Affine(DEGREES, SHIFT, SCALE, LEAN)
MEAN, STD = 0.1307, 0.3081


def make(slow: bool = False, affine: bool = True, drawn: bool = False) -> Task:
    """The task.

    Args:
        slow: augment and normalise one sample at a time in the loader, instead of whole batches in the step
        affine: shift, rotate and scale the training images at random
        drawn: use the images of the task glyphs instead, on machines without the MNIST files

    Example:
        manyhands train mnist:slow --loader-workers 2
    """
    read = glyphs_instead if drawn else images
    return Task(
        model=partial(lenet, mean=0.0, std=1.0) if slow else partial(lenet, mean=MEAN, std=STD),
        train=partial(one_by_one, read, affine) if slow else partial(read, "train"),
        test=partial(normalised_test, read) if slow else partial(read, "test"),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.02, momentum=0.9),
        schedule=linear(warmup=0.05),
        augment=AFFINE if affine and not slow else None,
        batch_size=32,
        eval_batch_size=256,  # passes of 32 are mostly launches
        epochs=3,
        name="mnist",
    )


def images(split: str) -> tuple[Tensor, Tensor]:
    """The images (uint8, count x 1 x 28 x 28) and labels of a split."""
    return files.mnist_split(split)


def glyphs_instead(split: str) -> tuple[Tensor, Tensor]:
    return glyphs.images(split, 60_000 if split == "train" else 10_000)


# ---------------------------------------------------------------- sample by sample

Read = Callable[[str], tuple[Tensor, Tensor]]


def one_by_one(read: Read, affine: bool) -> OneByOne:
    return OneByOne(*read("train"), affine)


def normalised_test(read: Read) -> tuple[Tensor, Tensor]:
    pictures, labels = read("test")
    return normalised(pictures.float().div(255)), labels


class OneByOne(Dataset):
    """The training set sample by sample: a picture each, moved at random, made a tensor and normalised when asked for."""

    def __init__(self, images: Tensor, labels: Tensor, affine: bool = True):
        self.images, self.labels, self.affine = images, labels, affine

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        matrix = random_inverse(*self.images.shape[-2:]) if self.affine else None
        return normalised(to_tensor(move(self.images[index, 0], matrix))), int(self.labels[index])


def to_tensor(pixels: np.ndarray) -> Tensor:
    """A picture's bytes (height x width, then channels where there are several) as channels x height x width, 0..1."""
    height, width = pixels.shape[:2]
    return torch.from_numpy(pixels).view(height, width, -1).permute(2, 0, 1).contiguous().float().div(255)


def normalised(image: Tensor) -> Tensor:
    """Mean and deviation become tensors each time, for any number of channels: usual, and part of what it costs."""
    mean, std = torch.tensor([MEAN]), torch.tensor([STD])
    return image.clone().sub_(mean[:, None, None]).div_(std[:, None, None])


def random_inverse(height: int, width: int) -> list[float]:
    """Six numbers a..f: pixel (x, y) of the result comes from (a x + b y + c, d x + e y + f); ranges as in AFFINE."""
    angle = math.radians(between(-DEGREES, DEGREES))
    right, down = between(-SHIFT, SHIFT) * width, between(-SHIFT, SHIFT) * height
    scale = between(*SCALE)
    tangent = math.tan(math.radians(between(-LEAN, LEAN)))
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    a, b, d, e = cos + tangent * sin, sin - tangent * cos, -sin, cos
    # the centre of the result, moved by the shift, comes from the centre of the image
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    to_x, to_y = middle_x + right, middle_y + down
    return [a, b, middle_x - a * to_x - b * to_y, d, e, middle_y - d * to_x - e * to_y]


def between(low: float, high: float) -> float:
    """One random number from torch's generator, as samples are usually given theirs."""
    return torch.empty(1).uniform_(low, high).item()


def move(image: Tensor, matrix: list[float] | None) -> np.ndarray:
    """One grey image (uint8, height x width) moved by an inverse affine map, between pixels by interpolation.

    Done by PIL, as in the study; by torch where PIL is not installed. Without a map the image still becomes a picture
    and numbers again: the study's loader made one of every sample, whatever was done to it.
    """
    try:
        from PIL import Image
    except ImportError:
        return move_with_torch(image, matrix) if matrix else image.numpy().copy()
    picture = Image.fromarray(image.numpy())
    if matrix is None:
        return np.array(picture)
    a, b, c, d, e, f = matrix
    centres = (a, b, c + 0.5 - (a + b) / 2, d, e, f + 0.5 - (d + e) / 2)  # PIL counts from the pixels' corners
    moved = picture.transform(picture.size, Image.Transform.AFFINE, centres, Image.Resampling.BILINEAR)
    return np.array(moved)


def move_with_torch(image: Tensor, matrix: list[float]) -> np.ndarray:
    height, width = image.shape
    a, b, c, d, e, f = matrix
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    source_x, source_y = a * x + b * y + c, d * x + e * y + f
    source = torch.stack(
        [(2 * source_x + 1) / width - 1, (2 * source_y + 1) / height - 1], dim=-1
    )  # -1..1 over the image
    moved = F.grid_sample(image[None, None].float(), source[None], align_corners=False)
    return moved[0, 0].round().to(torch.uint8).numpy()


task = make()
