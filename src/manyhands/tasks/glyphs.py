"""28x28 images of the ten digits, drawn by the package itself (no download); LeNet.

A digit is a few strokes (lines and arcs); a stroke is drawn as a row of soft round dots of radius r, which for all
images of a block is one batched matrix product:

    ink[y, x] = sum over dots of exp(-(y - dot.y)^2 / 2r^2) * exp(-(x - dot.x)^2 / 2r^2)

Every image has its own style, slant, rotation, size, thickness, place, wobble of the strokes and noise. All of it is
computed in float64 from seeded generators and then rounded to bytes, so that every machine draws the same images.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..data.files import cache_folder
from ..schedules import linear
from ..task import Task
from . import positive
from .models import lenet

Array = NDArray[np.float64]

SIZE = 28
DOTS = 56  # a glyph: dense enough that a row of dots is a smooth line
BLOCK = 500  # images drawn at a time, each block from its own generator: a short data set is the start of a long one


def make(train: int = 60_000, test: int = 10_000) -> Task:
    """The task.

    Args:
        train: how many training images are drawn
        test: how many test images are drawn

    Example:
        manyhands train glyphs:train=6000,test=1000
    """
    positive("glyphs", "at least 1", train=train, test=test)
    return Task(
        model=partial(lenet, mean=0.17, std=0.25),
        train=partial(images, "train", train),
        test=partial(images, "test", test),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.02, momentum=0.9),
        schedule=linear(warmup=0.05),
        batch_size=32,
        eval_batch_size=256,  # passes of 32 are mostly launches
        name="glyphs",
    )


def images(split: str, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` images (uint8, count x 1 x 28 x 28) and labels of a split, from the cache where possible."""
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    path = cache_folder() / f"glyphs-{digest}-{split}-{count}.npz"
    try:
        with path.open("rb") as file, np.load(file) as stored:
            pixels, labels = stored["pixels"], stored["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # absent or damaged
        pixels, labels = draw(split, count)
        with contextlib.suppress(OSError):  # a cache is a convenience: a full disk or a read-only home is no error
            _store(path, pixels, labels)
    return torch.from_numpy(pixels), torch.from_numpy(labels)


def _store(path: Path, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    """Write aside, then rename: readers and other writers of the same file never see half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            np.savez(file, pixels=pixels, labels=labels)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


# ---- the strokes -------------------------------------------------------------------------------------------------
# x to the right, y down, both about -1..1; angles in degrees, clockwise from the right.


def line(*points: tuple[float, float]) -> Array:
    return np.array(points, dtype=np.float64)


def arc(x: float, y: float, width: float, height: float, start: float, end: float) -> Array:
    angle = np.radians(np.linspace(start, end, 40))
    return np.stack([x + width * np.cos(angle), y + height * np.sin(angle)], axis=1)


def chain(*pieces: Array) -> Array:
    """One stroke made of several pieces, drawn without lifting the pen."""
    return np.concatenate(pieces)


STYLES: list[tuple[int, list[Array]]] = [  # (digit, strokes)
    (0, [arc(0, 0, 0.58, 1, -90, 270)]),
    (0, [arc(0, 0, 0.8, 0.95, -60, 310)]),
    (1, [line((0, -1), (0, 1))]),
    (1, [line((-0.4, -0.55), (0.1, -1), (0.1, 1))]),
    (1, [line((-0.35, -0.6), (0.05, -1), (0.05, 1)), line((-0.4, 1), (0.5, 1))]),
    (2, [chain(arc(0, -0.45, 0.55, 0.55, 195, 400), line((-0.55, 1), (0.6, 1)))]),
    (2, [chain(arc(0, -0.5, 0.5, 0.5, 180, 440), line((-0.6, 0.9)), arc(0.1, 1.5, 0.7, 0.7, 235, 300))]),
    (3, [chain(arc(-0.05, -0.5, 0.5, 0.5, 210, 440), arc(-0.05, 0.48, 0.6, 0.52, 280, 510))]),
    (3, [chain(line((-0.5, -1), (0.5, -1), (-0.05, -0.2)), arc(-0.05, 0.4, 0.58, 0.6, 280, 500))]),
    (4, [line((0.05, -1), (-0.65, 0.35), (0.65, 0.35)), line((0.3, -0.25), (0.3, 1))]),
    (4, [line((-0.5, -1), (-0.55, 0.1), (0.55, 0.1)), line((0.45, -0.95), (0.4, 1))]),
    (4, [line((0.3, 1), (0.3, -1), (-0.65, 0.4), (0.65, 0.4))]),
    (5, [chain(line((0.5, -1), (-0.4, -1), (-0.45, -0.1)), arc(0, 0.4, 0.58, 0.6, 230, 500))]),
    (5, [chain(line((-0.4, -0.95), (-0.4, -0.1)), arc(0, 0.4, 0.55, 0.6, 230, 490)), line((-0.4, -1), (0.55, -1))]),
    (6, [chain(arc(0.5, 0.4, 1, 1.4, 265, 180), arc(0, 0.45, 0.5, 0.55, 180, -180))]),
    (6, [chain(line((0.2, -1), (-0.5, 0.35)), arc(0, 0.5, 0.52, 0.5, 195, -165))]),
    (7, [line((-0.55, -0.95), (0.55, -0.95), (-0.15, 1))]),
    (7, [line((-0.55, -0.95), (0.55, -0.95), (-0.05, 1)), line((-0.3, 0.05), (0.5, 0.05))]),
    (8, [arc(0, -0.5, 0.46, 0.5, 90, 450), arc(0, 0.5, 0.56, 0.5, -90, 270)]),
    (8, [chain(arc(0, -0.5, 0.4, 0.5, 30, -210), arc(0, 0.5, 0.5, 0.5, -30, 210), line((0.35, -0.25)))]),
    (9, [chain(arc(0, -0.45, 0.5, 0.55, 0, -360), line((0.4, 1)))]),
    (9, [chain(arc(0, -0.45, 0.5, 0.55, 0, -360), arc(-0.5, -0.4, 1, 1.4, 0, 85))]),
]


def _dots(strokes: list[Array]) -> tuple[Array, NDArray[np.int64], float]:
    """DOTS points evenly along the strokes, the stroke each belongs to, and the length a dot stands for."""
    lengths = [np.linalg.norm(np.diff(stroke, axis=0), axis=1) for stroke in strokes]
    total = sum(float(length.sum()) for length in lengths)
    ends = np.cumsum([0.0, *(float(length.sum()) for length in lengths)])
    along = (np.arange(DOTS) + 0.5) / DOTS * total
    stroke_of = np.clip(np.searchsorted(ends, along, side="right") - 1, 0, len(strokes) - 1)
    points = np.empty((DOTS, 2))
    for number, (stroke, length) in enumerate(zip(strokes, lengths, strict=True)):
        mine = stroke_of == number
        travelled = np.concatenate([[0.0], np.cumsum(length)])
        for axis in (0, 1):
            points[mine, axis] = np.interp(along[mine] - ends[number], travelled, stroke[:, axis])
    return points, stroke_of, total / DOTS


# ---- drawing -----------------------------------------------------------------------------------------------------


def draw(split: str, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """`count` images and their labels."""
    dots = [_dots(strokes) for _, strokes in STYLES]
    points, stroke_of, spacing = (np.stack([np.asarray(glyph[part]) for glyph in dots]) for part in range(3))
    styles_of = [[style for style, (digit, _) in enumerate(STYLES) if digit == label] for label in range(10)]
    pixels = np.empty((count, 1, SIZE, SIZE), dtype=np.uint8)
    labels = np.empty(count, dtype=np.int64)
    for start in range(0, count, BLOCK):
        generator = np.random.default_rng([["train", "test"].index(split), start // BLOCK])
        digit = generator.integers(0, 10, BLOCK)
        choice = generator.random(BLOCK)
        style = np.array([styles_of[d][int(c * len(styles_of[d]))] for d, c in zip(digit, choice, strict=True)])
        block = _draw_block(generator, points[style], stroke_of[style], spacing[style])
        end = min(start + BLOCK, count)
        pixels[start:end, 0], labels[start:end] = block[: end - start], digit[: end - start]
    return pixels, labels


def _draw_block(
    generator: np.random.Generator, points: Array, stroke_of: NDArray[np.int64], spacing: Array
) -> NDArray[np.uint8]:
    count = len(points)

    def between(low: float, high: float, *shape: int) -> Array:
        return generator.uniform(low, high, (count, *shape))

    # The hand: each stroke a little off its place, and a slow wave through the whole figure.
    moved = points + np.take_along_axis(between(-0.15, 0.15, 3, 2), stroke_of[:, :, None], axis=1)
    wave = between(-0.22, 0.22, 1, 2) * np.sin(2.5 * moved[:, :, ::-1] + between(0, 2 * math.pi, 1, 2))
    moved = moved + wave

    # The pose: rotation * slant * size, then a place in the image.
    angle, slant = between(-0.22, 0.22), between(-0.25, 0.25)
    width, height = between(6.0, 9.5), between(7.5, 10.5)
    cos, sin = np.cos(angle), np.sin(angle)
    x = moved[:, :, 0] * width[:, None] - moved[:, :, 1] * (slant * height)[:, None]
    y = moved[:, :, 1] * height[:, None]
    centre = (SIZE - 1) / 2 + between(-1.2, 1.2, 2)
    column = cos[:, None] * x - sin[:, None] * y + centre[:, :1]
    row = sin[:, None] * x + cos[:, None] * y + centre[:, 1:]

    # The ink: a row of dots of radius r and spacing h adds up to a line of height sqrt(2 pi) r / h, clipped to full.
    radius = between(0.7, 1.35)
    strength = between(1.1, 1.9) * spacing * (width + height) / 2 / (math.sqrt(2 * math.pi) * radius)
    grid = np.arange(SIZE)[:, None]
    falloff = (-0.5 / radius**2)[:, None, None]
    across = np.exp(falloff * (grid - column[:, None, :]) ** 2)
    down = np.exp(falloff * (grid - row[:, None, :]) ** 2) * strength[:, None, None]
    ink = np.minimum(down @ across.transpose(0, 2, 1), 1.0) * between(0.5, 1.0, 1, 1)

    grain = between(0.05, 0.35, 1, 1) * generator.standard_normal((count, SIZE, SIZE))
    return np.rint(np.clip(ink + grain, 0.0, 1.0) * 255).astype(np.uint8)


task = make()
