"""Every augmentation against a reference that does one sample at a time, and the promises about keys."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyhands.data import augment as A
from manyhands.data import keys as K
from manyhands.data.augment import colour, geometry
from manyhands.errors import BadInput


def images(
    n: int = 12, channels: int = 3, height: int = 10, width: int = 13, dtype: torch.dtype = torch.uint8
) -> Tensor:
    made = torch.randint(0, 256, (n, channels, height, width), generator=torch.Generator().manual_seed(n))
    return made.to(torch.uint8) if dtype == torch.uint8 else (made / 255).to(dtype)


def everyone(dtype: torch.dtype = torch.uint8) -> Tensor:
    return images(40, dtype=dtype)


def keys_of(n: int) -> Tensor:
    return A.sample_keys(7, 3, torch.arange(n) * 11)


KINDS = [
    A.Affine(30, 0.2, (0.7, 1.3), (12, 5)),
    A.Affine((-90, 10), (0.1, 0.3), fill=0.4, mode="nearest"),
    A.Crop(3),
    A.Crop(2, fill=0.6),
    A.Crop(4, reflect=True),
    A.Flip(),
    A.Cutout(5),
    A.Cutout(4, fill=0.5),
    A.ColourJitter(0.4, 0.5, 0.6),
    A.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)),
    A.Mixup(everyone, alpha=0.4),
    A.Compose(A.Crop(3), A.Flip(), A.Cutout(4), A.Normalise(0.5, 0.25)),
]
each_kind = pytest.mark.parametrize("augmentation", KINDS, ids=lambda a: type(a).__name__)


def as_floats(batch: Tensor) -> np.ndarray:
    return batch.double().numpy() / (255 if batch.dtype == torch.uint8 else 1)


# --- numbers from keys -----------------------------------------------------------------------------------------------


def splitmix64(z: int) -> int:
    m = (1 << 64) - 1
    z &= m
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & m
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & m
    return z ^ (z >> 31)


def test_numbers_are_those_of_splitmix64() -> None:
    keys = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789], dtype=torch.int64)
    found = A.uniform(keys, 9)
    assert found.dtype == torch.float32
    assert found.shape == (6, 9)
    for row, key in zip(found.tolist(), keys.tolist(), strict=True):
        assert row == [(splitmix64(key + 0x9E3779B97F4A7C15 * (i + 1)) >> 40) / 2**24 for i in range(9)]


def test_keys_hash_seed_epoch_and_index() -> None:
    indices = torch.tensor([0, 5, 59_999, 2**40])
    base = splitmix64(splitmix64(42) + 3)
    expected = [splitmix64(base + index * 0x9E3779B97F4A7C15) for index in indices.tolist()]
    assert [key % (1 << 64) for key in A.sample_keys(42, 3, indices).tolist()] == expected


def test_keys_differ_for_every_seed_epoch_and_index() -> None:
    keys = [A.sample_keys(seed, epoch, torch.arange(500)) for seed in range(10) for epoch in range(10)]
    assert len(torch.cat(keys).unique()) == 10 * 10 * 500


@pytest.mark.parametrize(
    "keys", [torch.arange(40_000), A.sample_keys(0, 0, torch.arange(40_000))], ids=["raw", "mixed"]
)
def test_numbers_are_uniform_and_uncorrelated(keys: Tensor) -> None:
    other = [A.stream(keys, 0), A.stream(keys, 1), A.stream(A.stream(keys, 0), 1), A.stream(A.stream(keys, 1), 0)]
    numbers = torch.cat([A.uniform(part, 3) for part in (keys, keys + 1, *other)], 1).double().numpy()
    numbers = (
        np.delete(numbers, np.s_[3:6], 1) if keys[1] - keys[0] == 1 else numbers
    )  # raw keys + 1: the same row, moved
    bins = np.stack([np.bincount((column * 64).astype(int), minlength=64) for column in numbers.T])
    chi_square = ((bins - 625.0) ** 2 / 625).sum(1)
    assert chi_square.max() < 120  # 63 degrees of freedom: 1 in 50,000 is above 120
    correlation = np.corrcoef(numbers.T) - np.eye(numbers.shape[1])
    assert np.abs(correlation).max() < 5 / math.sqrt(len(keys))
    in_a_row = np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]
    assert abs(in_a_row) < 5 / math.sqrt(len(keys))


@pytest.fixture
def on_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The arithmetic that runs on a GPU, on tensors, here."""

    def constant(values: tuple, device: torch.device, dtype: str = "float32") -> Tensor:
        return torch.from_numpy(np.array(values, dtype))

    forget_constants()
    monkeypatch.setattr(K, "as_array", lambda tensor: tensor)
    for module in (K, colour, geometry):
        monkeypatch.setattr(module, "constant", constant)
    yield
    forget_constants()


def forget_constants() -> None:
    for module in (K, colour, geometry):
        for kept in vars(module).values():
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()


def test_tensors_and_arrays_give_the_same_numbers(on_tensors: None, request: pytest.FixtureRequest) -> None:
    keys = A.sample_keys(1, 2, torch.arange(-3, 100))
    numbers = A.uniform(A.stream(keys, 4), 5)
    assert isinstance(K.draw(keys, 2), Tensor)
    request.getfixturevalue("monkeypatch").undo()
    forget_constants()
    assert not isinstance(K.draw(keys, 2), Tensor)
    assert torch.equal(keys, A.sample_keys(1, 2, torch.arange(-3, 100)))
    assert torch.equal(numbers, A.uniform(A.stream(keys, 4), 5))


@each_kind
def test_tensors_and_arrays_augment_alike(augmentation, request: pytest.FixtureRequest) -> None:
    expected = augmentation(images(), keys_of(12))
    request.getfixturevalue("on_tensors")
    assert_alike(augmentation, augmentation(images(), keys_of(12)), expected, 2e-6)


def assert_alike(augmentation: object, found: Tensor, expected: Tensor, within: float) -> None:
    """Equal but for rounding; where the nearest of two pixels is a toss-up, rounding may choose the other."""
    if isinstance(augmentation, A.Affine) and augmentation.mode == "nearest":
        assert ((found - expected).abs() > within).float().mean() < 0.01
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=within)


# --- what holds for every augmentation -------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_a_sample_does_not_depend_on_its_batch(augmentation, dtype: torch.dtype) -> None:
    if isinstance(augmentation, A.Mixup):
        augmentation = A.Mixup(partial(everyone, dtype), augmentation.alpha)
    batch, keys = images(41, dtype=dtype), keys_of(41)
    whole = augmentation(batch, keys)
    for cuts in ([1, 40], [20, 21], [7, 0, 17, 17], [1] * 41):
        shards = [augmentation(b, k) for b, k in zip(batch.split(cuts), keys.split(cuts), strict=True)]
        assert torch.equal(torch.cat(shards), whole), cuts
    order = torch.randperm(41, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augmentation(batch[order], keys[order]), whole[order])


@each_kind
def test_values_and_types(augmentation) -> None:
    batch = images()
    kept = batch.clone()
    moved = augmentation(batch, keys_of(12))
    assert torch.equal(batch, kept), "the input was written to"
    assert moved.shape == batch.shape
    only_moves = isinstance(augmentation, A.Crop | A.Flip | A.Cutout)
    assert moved.dtype == (torch.uint8 if only_moves else torch.float32)
    if isinstance(augmentation, A.Mixup):
        return
    # the same picture as 0..1 comes out the same, in its own floating-point type
    for dtype, within in ((torch.float32, 3e-3), (torch.float64, 3e-3), (torch.bfloat16, 5e-2)):
        floats = augmentation((batch / 255).to(dtype), keys_of(12))
        assert floats.dtype == dtype
        torch.testing.assert_close(floats.double(), torch.from_numpy(as_floats(moved)), rtol=0, atol=within)


@each_kind
def test_empty_batches_and_other_layouts(augmentation) -> None:
    assert augmentation(images()[:0], keys_of(0)).shape == (0, 3, 10, 13)
    channels_last = images().contiguous(memory_format=torch.channels_last)
    assert torch.equal(augmentation(channels_last, keys_of(12)), augmentation(images(), keys_of(12)))


@each_kind
def test_is_a_value(augmentation) -> None:
    again = pickle.loads(pickle.dumps(augmentation))
    assert again == augmentation
    assert hash(again) == hash(augmentation)
    assert type(augmentation).__name__ in repr(augmentation)
    assert torch.equal(again(images(), keys_of(12)), augmentation(images(), keys_of(12)))


def test_settings_have_one_form() -> None:
    assert A.Affine(10) == A.Affine((-10, 10), (0, 0), (1, 1), (0, 0))
    assert A.Affine(10) != A.Affine(11)
    assert repr(A.Affine(10, 0.1)) == (
        "Affine(degrees=(-10.0, 10.0), translate=(0.1, 0.1), scale=(1.0, 1.0), shear=(0.0, 0.0), "
        "fill=0.0, mode='bilinear')"
    )
    assert repr(A.Compose(A.Flip(), A.Crop(4))) == "Compose(Flip(p=0.5), Crop(padding=4, fill=0.0, reflect=False))"
    assert A.Normalise(0.5, 0.2) == A.Normalise((0.5,), [0.2])


# --- each against its reference --------------------------------------------------------------------------------------


def affine_reference(affine: A.Affine, batch: Tensor, keys: Tensor, nearest: bool = False) -> np.ndarray:
    """Where each point goes by the docstring, inverted by numpy; four neighbours by hand."""
    n, channels, height, width = batch.shape
    pictures, result = as_floats(batch), np.empty(batch.shape)
    (d0, d1), (tx, ty), (s0, s1), (kx, ky) = affine.degrees, affine.translate, affine.scale, affine.shear
    for sample in range(n):
        u = A.uniform(keys[sample : sample + 1], 6)[0].double().tolist()
        angle, scale = math.radians(d0 + u[0] * (d1 - d0)), s0 + u[1] * (s1 - s0)
        lean_x, lean_y = math.radians((2 * u[2] - 1) * kx), math.radians((2 * u[3] - 1) * ky)
        shift = np.array([(2 * u[4] - 1) * tx * width, (2 * u[5] - 1) * ty * height])
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        shear = np.array([[1, math.tan(lean_x)], [0, 1]]) @ np.array([[1, 0], [math.tan(lean_y), 1]])
        back = np.linalg.inv(turn @ shear * scale)
        centre = np.array([(width - 1) / 2, (height - 1) / 2])

        def pixel(y: int, x: int) -> np.ndarray:
            inside = 0 <= y < height and 0 <= x < width
            return pictures[sample, :, y, x] if inside else np.full(channels, affine.fill)

        for y in range(height):
            for x in range(width):
                sx, sy = back @ (np.array([x, y]) - centre - shift) + centre
                if nearest:
                    close = min(abs(sx % 1 - 0.5), abs(sy % 1 - 0.5)) < 1e-4  # rounding could go either way
                    result[sample, :, y, x] = np.nan if close else pixel(round(sy), round(sx))
                    continue
                x0, y0 = math.floor(sx), math.floor(sy)
                wx, wy = sx - x0, sy - y0
                top = (1 - wx) * pixel(y0, x0) + wx * pixel(y0, x0 + 1)
                low = (1 - wx) * pixel(y0 + 1, x0) + wx * pixel(y0 + 1, x0 + 1)
                result[sample, :, y, x] = (1 - wy) * top + wy * low
    return result


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize(
    "affine",
    [
        A.Affine(),
        A.Affine(degrees=180),
        A.Affine(degrees=(90, 90)),
        A.Affine(translate=(0.5, 0.1)),
        A.Affine(scale=(0.4, 2.5)),
        A.Affine(shear=(40, 20)),
        A.Affine(10, 0.1, (0.9, 1.1), 10, fill=0.2),
        A.Affine(60, 0.3, (0.5, 1.5), (20, 10), fill=0.8),
    ],
    ids=repr,
)
def test_affine_bilinear(affine: A.Affine, dtype: torch.dtype) -> None:
    batch, keys = images(6, 2, 9, 14, dtype), keys_of(6)
    np.testing.assert_allclose(affine(batch, keys).numpy(), affine_reference(affine, batch, keys), rtol=0, atol=2e-5)


@pytest.mark.parametrize("fill", [0.0, 0.6])
def test_affine_nearest(fill: float) -> None:
    affine = A.Affine(70, 0.2, (0.6, 1.6), (15, 10), fill=fill, mode="nearest")
    batch, keys = images(8, 2, 12, 9), keys_of(8)
    expected = affine_reference(affine, batch, keys, nearest=True)
    clear = ~np.isnan(expected)
    assert clear.mean() > 0.99
    np.testing.assert_allclose(affine(batch, keys).numpy()[clear], expected[clear], rtol=0, atol=1e-6)


def test_affine_directions() -> None:
    """A dot right of the centre: turned 90 degrees clockwise it is below, shifted it is further right."""
    dot = torch.zeros(1, 1, 5, 5)
    dot[0, 0, 2, 3] = 1
    keys = keys_of(1)
    assert A.Affine((90, 90))(dot, keys)[0, 0, 3, 2] == pytest.approx(1, abs=1e-5)
    assert A.Affine(scale=(2, 2))(dot, keys)[0, 0, 2, 4] == pytest.approx(1, abs=1e-5)
    shift = float(2 * A.uniform(keys, 6)[0, 4] - 1)  # the number that shifts along x
    moved = A.Affine(translate=(1 / 5 / abs(shift), 0))(dot, keys)
    assert moved[0, 0, 2, 3 + (1 if shift > 0 else -1)] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("crop", [A.Crop(1), A.Crop(4, fill=0.4), A.Crop(8, reflect=True), A.Crop(20)], ids=repr)
def test_crop(crop: A.Crop, dtype: torch.dtype) -> None:
    batch, keys = images(50, 3, 9, 14, dtype), keys_of(50)
    p, found = crop.padding, crop(batch, keys)
    fill = round(crop.fill * 255) if dtype == torch.uint8 else crop.fill
    places = (A.uniform(keys, 2).double() * (2 * p + 1)).floor().long().tolist()
    for sample, (top, left) in enumerate(places):
        mode = {"mode": "reflect"} if crop.reflect else {"mode": "constant", "constant_values": fill}
        padded = np.pad(batch[sample].numpy(), ((0, 0), (p, p), (p, p)), **mode)
        np.testing.assert_array_equal(found[sample].numpy(), padded[:, top : top + 9, left : left + 14])
    assert {place for pair in places for place in pair} >= {0, 2 * p} or p > 4, "the corners are never cut"


def test_flip() -> None:
    batch, keys = images(200), keys_of(200)
    for p in (0.0, 0.3, 1.0):
        flips, found = A.uniform(keys, 1)[:, 0] < p, A.Flip(p)(batch, keys)
        for sample in range(200):
            expected = batch[sample].numpy()[:, :, ::-1] if flips[sample] else batch[sample].numpy()
            np.testing.assert_array_equal(found[sample].numpy(), expected)
        assert abs(flips.float().mean() - p) < 0.1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("cutout", [A.Cutout(1), A.Cutout(4), A.Cutout(5, fill=0.4), A.Cutout(30)], ids=repr)
def test_cutout(cutout: A.Cutout, dtype: torch.dtype) -> None:
    batch, keys = images(30, 3, 9, 14, dtype), keys_of(30)
    found = cutout(batch, keys)
    fill = round(cutout.fill * 255) if dtype == torch.uint8 else cutout.fill
    for sample, (u, v) in enumerate(A.uniform(keys, 2).double().tolist()):
        top, left = math.floor(u * 9) - cutout.size // 2, math.floor(v * 14) - cutout.size // 2
        expected = batch[sample].numpy().copy()
        expected[:, max(top, 0) : max(top + cutout.size, 0), max(left, 0) : max(left + cutout.size, 0)] = fill
        np.testing.assert_array_equal(found[sample].numpy(), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_colour_jitter(channels: int, dtype: torch.dtype) -> None:
    jitter = A.ColourJitter(0.8, 0.7, 0.9)
    batch, keys = images(20, channels, 6, 5, dtype), keys_of(20)
    found, pictures = jitter(batch, keys).numpy(), as_floats(batch)
    for sample, u in enumerate(A.uniform(keys, 3).double().tolist()):
        brightness, contrast, saturation = (1 + (2 * a - 1) * b for a, b in zip(u, (0.8, 0.7, 0.9), strict=True))
        weights = np.array([0.299, 0.587, 0.114] if channels == 3 else [1.0])[:, None, None]
        picture = pictures[sample] * brightness
        mean = (picture * weights).sum(0).mean()
        picture = contrast * picture + (1 - contrast) * mean
        picture = saturation * picture + (1 - saturation) * (picture * weights).sum(0)
        np.testing.assert_allclose(found[sample], picture.clip(0, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_normalise(dtype: torch.dtype) -> None:
    batch, mean, std = images(5, dtype=dtype), np.array([0.1, 0.5, 0.9]), np.array([0.2, 1.0, 3.0])
    expected = (as_floats(batch) - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(A.Normalise(tuple(mean), tuple(std))(batch), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(A.Normalise(0.5, 0.25)(batch), (as_floats(batch) - 0.5) / 0.25, rtol=0, atol=1e-5)


def test_compose_gives_each_part_its_own_stream() -> None:
    keys = keys_of(200)
    seen: list[Tensor] = []

    def look(input: Tensor, keys: Tensor) -> Tensor:
        seen.append(keys)
        return input

    A.Compose(look, look, A.Compose(look, look), A.Compose(A.Compose(look), look))(images(200), keys)
    assert len(torch.cat([keys, *seen]).unique()) == 7 * 200
    first = seen[0]
    A.Compose(look, A.Flip())(images(200), keys)
    assert torch.equal(seen[-1], first), "a part added behind changes the numbers of the one before"
    two = A.Compose(A.Flip(), A.Flip())(images(200), keys)
    unchanged = (two == images(200)).flatten(1).all(1).float().mean()
    assert 0.3 < unchanged < 0.7, "two flips on one stream would undo each other"


# --- mixup and label smoothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_mixup(dtype: torch.dtype) -> None:
    mixup = A.Mixup(partial(everyone, dtype), alpha=0.3)
    batch, keys = images(25, dtype=dtype), keys_of(25)
    found, own, others = mixup(batch, keys).numpy(), as_floats(batch), as_floats(everyone(dtype))
    quantiles = colour.mixup_weights(0.3, torch.device("cpu")).double().numpy()
    for sample, (u, v) in enumerate(A.uniform(keys, 2).double().tolist()):
        weight = np.interp(v * 4096, np.arange(4097), quantiles)
        expected = weight * own[sample] + (1 - weight) * others[math.floor(u * 40)]
        np.testing.assert_allclose(found[sample], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0])
def test_mixup_weights_follow_beta(alpha: float) -> None:
    q = colour.mixup_weights(alpha, torch.device("cpu")).double().numpy()
    assert q[0] == 0
    assert q[-1] == 1
    assert (np.diff(q) >= 0).all()
    a, b = alpha + 1, alpha
    middle = (q[1:] + q[:-1]) / 2
    assert middle.mean() == pytest.approx(a / (a + b), abs=1e-3)
    assert (middle**2).mean() == pytest.approx(a * (a + 1) / ((a + b) * (a + b + 1)), abs=1e-3)


def test_mixup_has_the_mean_loss_of_blended_targets() -> None:
    """Over all pairs: w loss(a) + (1 - w) loss(b), w ~ Beta(alpha, alpha); and loss(a), w ~ Beta(alpha + 1, alpha)."""
    alpha, rng = 0.5, np.random.default_rng(0)
    points, classes = rng.normal(size=(6, 4)), rng.integers(0, 3, 6)
    model = rng.normal(size=(4, 3))

    def losses(weights: np.ndarray) -> np.ndarray:
        """Cross-entropy (weight, a, b, class) of the blend of a and b."""
        w = weights[:, None, None, None]
        logits = (w * points[:, None] + (1 - w) * points[None]) @ model
        return np.log(np.exp(logits).sum(-1, keepdims=True)) - logits

    a, b = np.meshgrid(classes, classes, indexing="ij")
    ours_at = colour.mixup_weights(alpha, torch.device("cpu")).double().numpy()
    ours = np.take_along_axis(losses((ours_at[1:] + ours_at[:-1]) / 2), a[None, ..., None], -1).mean()
    usual_at = np.sin(np.pi / 2 * (np.arange(4096) + 0.5) / 4096) ** 2  # quantiles of Beta(1/2, 1/2), the arcsine law
    table, w = losses(usual_at), usual_at[:, None, None, None]
    usual = w * np.take_along_axis(table, a[None, ..., None], -1)
    usual = (usual + (1 - w) * np.take_along_axis(table, b[None, ..., None], -1)).mean()
    assert ours == pytest.approx(usual, rel=1e-3)


def test_label_smoothing() -> None:
    output, target = torch.randn(8, 5), torch.randint(0, 5, (8,))
    soft = F.one_hot(target, 5) * 0.8 + 0.2 / 5
    expected = -(soft * output.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(A.LabelSmoothing(0.2)(output, target), expected)
    assert A.LabelSmoothing(0.2) == pickle.loads(pickle.dumps(A.LabelSmoothing(0.2)))


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: A.Affine(degrees=(20, 10)), r"Affine degrees must go from low to high \(found \(20, 10\)\)"),
        (lambda: A.Affine(degrees="ten"), "Affine degrees must be a number or a pair"),
        (lambda: A.Affine(translate=(1, 2, 3)), "Affine translate must be a number or a pair"),
        (lambda: A.Affine(scale=1.1), r"Affine scale must be a pair \(low, high\) \(found 1.1\)"),
        (lambda: A.Affine(scale=(0, 1)), "Affine scale must be above 0"),
        (lambda: A.Affine(shear=90), "Affine shear must be below 90 degrees"),
        (lambda: A.Affine(mode="cubic"), 'Affine mode must be "bilinear" or "nearest"'),
        (lambda: A.Crop(0), r"Crop padding must be a whole number of at least 1 \(found 0\)"),
        (lambda: A.Crop(2, fill=1, reflect=True), "Crop pads with fill or reflect, not both"),
        (lambda: A.Crop(10, reflect=True)(images(), keys_of(12)), r"at most size - 1 pixels \(padding: 10, size: 10\)"),
        (lambda: A.Crop(1, fill=2)(images(), keys_of(12)), "fill for uint8 images must be a number from 0 to 1"),
        (lambda: A.Flip(1.5), r"Flip p must be a number from 0 to 1 \(found 1.5\)"),
        (lambda: A.Cutout(2.5), "Cutout size must be a whole number"),
        (lambda: A.ColourJitter(saturation=-1), "ColourJitter saturation must be a number from 0 to 1"),
        (lambda: A.ColourJitter(0.1)(images(channels=2), keys_of(12)), "1 channel or 3 .*; found 2"),
        (lambda: A.Normalise((0.1, 0.2), 0.5), "one mean and one std above 0 per channel"),
        (lambda: A.Normalise(0.1, 0.0), "one mean and one std above 0 per channel"),
        (
            lambda: A.Normalise((0.1, 0.2), (1, 1))(images()),
            r"needs images \(n, 2, height, width\); found uint8 \(12, 3",
        ),
        (lambda: A.Mixup(images()), "Mixup inputs must be a function returning all images"),
        (lambda: A.Mixup(everyone, 0), r"Mixup alpha must be above 0 \(found 0\)"),
        (lambda: A.Mixup(everyone)(images() / 255, keys_of(12)), "Mixup inputs are uint8 .* but the images float32"),
        (lambda: A.LabelSmoothing(2), "LabelSmoothing amount must be a number from 0 to 1"),
        (lambda: A.Compose(A.Flip(), 3), r"Compose takes callables .* \(found 3\)"),
        (lambda: A.Flip()([images()], keys_of(12)), "Flip augments one tensor of images, but the input is a list"),
        (lambda: A.Flip()(images()[0], keys_of(3)), r"found uint8 \(3, 10, 13\)"),
        (lambda: A.Flip()(images().long(), keys_of(12)), "uint8 or floating point; found int64"),
        (lambda: A.Flip()(images(), keys_of(11)), r"expected int64 \(12,\), found int64 \(11,\)"),
        (lambda: A.Flip()(images(), torch.zeros(12)), r"expected int64 \(12,\), found float32 \(12,\)"),
        (lambda: A.Flip()(images(), None), "found NoneType"),
        (lambda: A.Flip()(images(), keys_of(12).to("meta")), "the images are on cpu but the keys on meta"),
    ],
)
def test_refusals(make, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()


# --- on a GPU --------------------------------------------------------------------------------------------------------

cuda = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class TestCuda:
    pytestmark = cuda

    def test_numbers_are_the_same_to_the_bit(self) -> None:
        indices = torch.arange(10_000)
        keys = A.sample_keys(5, 6, indices.cuda())
        assert torch.equal(keys.cpu(), A.sample_keys(5, 6, indices))
        assert torch.equal(A.uniform(A.stream(keys, 2), 7).cpu(), A.uniform(A.stream(keys.cpu(), 2), 7))

    @each_kind
    def test_pictures_are_the_same(self, augmentation) -> None:
        found = augmentation(images().cuda(), keys_of(12).cuda()).cpu()
        expected = augmentation(images(), keys_of(12))
        assert_alike(augmentation, found, expected, 1e-4)

    @each_kind
    def test_can_be_captured(self, augmentation) -> None:
        batch, keys = images().cuda(), keys_of(12).cuda()
        augmentation(batch, keys)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = augmentation(batch, keys)
        later = A.sample_keys(1, 1, torch.arange(12))
        keys.copy_(later)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, augmentation(batch, later.cuda()))
