"""Numbers from keys: one 64-bit key a sample, and as many random numbers from it as an augmentation wants.

    (seed, epoch, index)  --sample_keys-->  key  --stream-->  keys of its parts  --uniform-->  numbers in [0, 1)

Each step is a hash of what stands before it and nothing else, so the numbers of a sample are the same to the bit on any
device, in any shard or batch and after a resume; there is no generator whose state could differ.

A batch needs few numbers, so the calls are the cost, and a call into numpy costs a quarter of one into torch: on the
CPU the arithmetic runs on numpy views of the tensors, elsewhere on the tensors themselves. Both know the same operators
on int64, so each formula is written once. `Array` is either of the two.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Any
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2**64 / golden ratio as a signed number: the steps of splitmix64's counter
STREAM = 0xD1342543DE82EF95 - (1 << 64)  # an odd multiplier with well spread bits: keys -> keys of another stream


def sample_keys(seed: int, epoch: int, indices: Tensor) -> Tensor:
    """One key a sample, int64, on the device of `indices`; as good as independent for different arguments."""
    return as_tensor(_mix(as_array(indices.to(torch.int64)) * GOLDEN + _epoch_base(seed, epoch)))


def one_key(seed: int, epoch: int, index: int) -> int:
    """The key of one sample as a number."""
    return _block_of_keys(seed, epoch, index // 256)[index % 256]


@lru_cache(maxsize=16)
def _block_of_keys(seed: int, epoch: int, block: int) -> list[int]:
    """One call costs as much as many."""
    return sample_keys(seed, epoch, torch.arange(block * 256, (block + 1) * 256)).tolist()


def stream(keys: Tensor, number: int) -> Tensor:
    """Other keys for the same samples: an augmentation made of several gives each a stream of its own.

    A multiplication and an addition, not an addition alone: streams of streams must not meet (1 of 2, 2 of 1).
    """
    return as_tensor(as_array(keys) * STREAM + (number + 1))


def uniform(keys: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) for each key: float32 (n, count), multiples of 2**-24."""
    return as_tensor(draw(keys, count).T)


def draw(keys: Tensor, count: int) -> Array:
    """`uniform` the other way round, (count, n), so that what is done to one number runs over adjacent memory."""
    top = (_mix(as_array(keys) + _steps(count, keys.device)) >> 40) & 0xFF_FFFF
    return top.astype(np.float32) * np.float32(2**-24) if isinstance(top, np.ndarray) else top * 2**-24


def _mix(z: Array) -> Array:
    """The finaliser of splitmix64, in place: every bit of the result depends on every bit of z.

    int64 shifts keep the sign, so a mask turns each into the shift of an unsigned number.
    """
    z ^= (z >> 30) & 0x3_FFFF_FFFF
    z *= 0xBF58476D1CE4E5B9 - (1 << 64)
    z ^= (z >> 27) & 0x1F_FFFF_FFFF
    z *= 0x94D049BB133111EB - (1 << 64)
    z ^= (z >> 31) & 0x1_FFFF_FFFF
    return z


@lru_cache(maxsize=64)
def _epoch_base(seed: int, epoch: int) -> int:
    of_seed = int(_mix(np.array([_signed(seed)]))[0])
    return int(_mix(np.array([_signed(of_seed + epoch)]))[0])


@lru_cache(maxsize=64)
def _steps(count: int, device: torch.device) -> Array:
    return constant(tuple((_signed(GOLDEN * (i + 1)),) for i in range(count)), device, "int64")


def _signed(z: int) -> int:
    """The int64 with the same 64 bits."""
    return (z + (1 << 63)) % (1 << 64) - (1 << 63)


def as_array(tensor: Tensor) -> Array:
    """What small arithmetic on this tensor's device is done on."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def as_tensor(array: Array) -> Tensor:
    """Back to a tensor, over the same memory."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def library_of(array: Array) -> ModuleType:
    """Where sin and the like of this array are."""
    return np if isinstance(array, np.ndarray) else torch


@lru_cache(maxsize=512)
def constant(values: tuple[Any, ...], device: torch.device, dtype: str = "float32") -> Array:
    """An array of `values` on `device`, copied there once: a captured step must not copy from the host."""
    made = np.array(values, dtype)
    if device.type == "cpu":
        return made
    with torch.inference_mode(False):
        return torch.from_numpy(made).to(device)


def whole(array: Array) -> Array:
    """Towards zero, int64."""
    return array.astype(np.int64) if isinstance(array, np.ndarray) else array.long()


def counting(count: int, beside: Array) -> Array:
    """0, 1, ... count - 1 where `beside` is."""
    if isinstance(beside, np.ndarray):
        return np.arange(count)
    return torch.arange(count, device=beside.device)
