"""Data sets as files: where they are found, how they are read.

A file is looked for in the folder `MANYHANDS_DATA`, then in the cache (`$XDG_CACHE_HOME/manyhands`, that is
`~/.cache/manyhands`), and fetched into the cache from its public home if it is in neither:

    MANYHANDS_DATA, cache:   mnist/train-images-idx3-ubyte.gz ...                      (.gz or not)
                             cifar10/cifar-10-batches-bin/data_batch_1.bin ...
                             text/tinyshakespeare.txt, text/rt_polarity_pos.txt ...

Only formats that are plain numbers or text are read, never a pickle. A file that is not what it should be is named,
with what was expected and what was found.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput, did_you_mean
from .download import DownloadFailed, Remote, fetch

Split = tuple[Tensor, Tensor]  # images uint8 (n, channels, height, width), labels int64 (n,)


class DataNotFound(BadInput):
    """A data set is neither on this machine nor to be had from its public home."""


# --- the data sets ---------------------------------------------------------------------------------------------------

MNIST = {  # name: (size, SHA-256) of the .gz file
    "train-images-idx3-ubyte": (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1-ubyte": (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3-ubyte": (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1-ubyte": (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
MNIST_HOMES = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")

CIFAR10 = Remote(
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    ((170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR10_SIDE = 100  # an atlas has 100 rows of 100 images, a binary file as many records
CIFAR10_RECORD = 1 + 3 * 32 * 32  # one label, then red, green and blue, row by row

GITHUB = "https://raw.githubusercontent.com"
TEXTS = {
    "tinyshakespeare.txt": Remote(
        (f"{GITHUB}/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
        ((1_115_394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),),
    ),
    # The reviews are published in UTF-8 and in the Windows-1252 they were collected in: the same text either way.
    "rt_polarity_pos.txt": Remote(
        (
            f"{GITHUB}/dennybritz/cnn-text-classification-tf/master/data/rt-polaritydata/rt-polarity.pos",
            f"{GITHUB}/yoonkim/CNN_sentence/master/rt-polarity.pos",
        ),
        (
            (626_395, "4134882974a28d0c7b5151256f0e33a6169984ee7372c279e673f1114f475d58"),
            (626_168, "d79ef14009bbf87cd6be21f91c3ea1a3cbcb73b34dfb4231aef7bbcd7677abc4"),
        ),
    ),
    "rt_polarity_neg.txt": Remote(
        (
            f"{GITHUB}/dennybritz/cnn-text-classification-tf/master/data/rt-polaritydata/rt-polarity.neg",
            f"{GITHUB}/yoonkim/CNN_sentence/master/rt-polarity.neg",
        ),
        (
            (612_506, "2d11cfbc790f1cd96d78339f41ce53ced1efa83cd22d37d6788fa3fe3d17e2fd"),
            (612_290, "4af43bf489620b498a0852c5a8c6a535155dec7985fdfea782b8f7756b957ccc"),
        ),
    ),
}


def mnist() -> tuple[Split, Split]:
    """MNIST's 60,000 training and 10,000 test images, uint8 (n, 1, 28, 28), with their labels."""
    return mnist_split("train"), mnist_split("test")


def mnist_split(split: str) -> Split:
    """One of the two: `train` or `test`."""
    part, count = ("train", 60_000) if split == "train" else ("t10k", 10_000)
    read = []
    for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
        name = f"{part}-{kind}-ubyte"
        remote = Remote(tuple(f"{home}{name}.gz" for home in MNIST_HOMES), (MNIST[name],))
        path = find("mnist", f"mnist/{name}.gz", f"mnist/{name}", f"MNIST/raw/{name}", remote=remote)
        array = read_idx(path)
        if array.shape != shape or array.dtype != np.uint8:
            raise BadInput(f"{path}: expected uint8 {shape}, found {array.dtype} {array.shape}")
        read.append(torch.from_numpy(array))
    images, labels = read
    _check_labels(labels.numpy(), path)
    return images[:, None], labels.long()


def cifar10() -> tuple[Split, Split]:
    """CIFAR-10's 50,000 training and 10,000 test images, uint8 (n, 3, 32, 32), with their labels."""
    return read_cifar10(_cifar10_folder())


def cifar10_split(split: str) -> Split:
    """One of the two: `train` or `test`."""
    return _cifar10_split(_cifar10_folder(), split)


def _cifar10_folder() -> Path:
    folders = ("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "cifar10/labels.npz")
    archives = ("cifar10/cifar-10-binary.tar.gz", "cifar-10-binary.tar.gz")
    path = _look(*folders, *archives) or find("cifar10", *archives, remote=CIFAR10)
    if path.name == "labels.npz":
        path = path.parent
    elif not path.is_dir():
        archive, path = path, unpack_cifar10_archive(path, cache_folder() / "cifar10")
        if archive.is_relative_to(cache_folder()):
            archive.unlink(missing_ok=True)  # it has served; the user's own copy is left alone
    return path


def text(name: str) -> str:
    """One of the texts: `tinyshakespeare.txt`, or the film reviews `rt_polarity_pos.txt` and `rt_polarity_neg.txt`."""
    if name not in TEXTS:
        raise DataNotFound(f'no text named "{name}"{did_you_mean(name, TEXTS)}')
    return read_text(find("text", f"text/{name}", name, remote=TEXTS[name]))


# --- finding ---------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where what was fetched is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyhands"


def _data_folder() -> Path | None:
    named = os.environ.get("MANYHANDS_DATA")
    return Path(named).expanduser() if named else None


def _look(*names: str) -> Path | None:
    for folder in filter(None, (_data_folder(), cache_folder())):
        for name in names:
            if (folder / name).exists():
                return folder / name
    return None


def find(data: str, *names: str, remote: Remote | None = None, progress: bool = True) -> Path:
    """The first of `names` that exists in `MANYHANDS_DATA` or the cache, else `names[0]` fetched into the cache."""
    found = _look(*names)
    if found:
        return found
    target = cache_folder() / names[0]
    why = "it has no public home"
    if remote:
        try:
            fetch(remote, target, progress=progress)
            return target
        except (DownloadFailed, OSError) as error:
            why = f"download failed: {error}"
    named = _data_folder()
    given = "unset" if named is None else f"{named}" if named.is_dir() else f"{named}, no such folder"
    raise DataNotFound(
        f"{data}: {names[0]} not found in MANYHANDS_DATA ({given}) nor in {cache_folder()}; {why}; "
        f"put what there is of {data} into {target.parent} or set MANYHANDS_DATA"
    )


# --- reading ---------------------------------------------------------------------------------------------------------

IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: str | Path) -> np.ndarray:
    """An array from an idx file, gzipped or not (told by its first bytes, not by its name)."""
    path = Path(path)
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            with gzip.open(raw) if zipped else raw as file:
                return _idx(path, file)
        except EOFError:
            raise BadInput(f"{path}: the gzip data ends early ({path.stat().st_size:,} bytes in the file)") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise BadInput(f"{path}: damaged gzip data ({error})") from None


def _idx(path: Path, file: IO[bytes] | gzip.GzipFile) -> np.ndarray:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES:
        raise BadInput(
            f"{path}: not an idx file: expected it to begin with 00 00 08, found {magic.hex(' ') or 'nothing'}"
        )
    dimensions = file.read(4 * magic[3])
    if len(dimensions) < 4 * magic[3]:
        raise BadInput(f"{path}: the idx header ends early (expected {magic[3]} dimensions)")
    shape = tuple(int(n) for n in np.frombuffer(dimensions, ">u4"))
    kind = np.dtype(IDX_TYPES[magic[2]])
    expected = math.prod(shape) * kind.itemsize
    values = bytearray(file.read(expected))
    surplus = len(file.read(1))
    if len(values) != expected or surplus:
        found = "more" if surplus else f"{len(values):,}"
        raise BadInput(f"{path}: expected {expected:,} bytes of values for shape {shape}, found {found}")
    return np.frombuffer(values, kind).astype(kind.newbyteorder("="), copy=False).reshape(shape)


def read_cifar10(folder: str | Path) -> tuple[Split, Split]:
    """Training and test images from the six binary files in `folder`.

    A folder that holds them as lossless WebP atlases (100 x 100 images each) with `labels.npz` instead is turned into
    the binary files in the cache first, once.
    """
    return _cifar10_split(Path(folder), "train"), _cifar10_split(Path(folder), "test")


def _cifar10_split(folder: Path, split: str) -> Split:
    if (folder / "labels.npz").exists() and not (folder / f"{CIFAR10_BATCHES[0]}.bin").exists():
        folder = unpack_cifar10_atlases(folder, cache_folder() / "cifar10")
    names = CIFAR10_BATCHES[:5] if split == "train" else CIFAR10_BATCHES[5:]
    images, labels = zip(*(_cifar10_batch(folder / f"{name}.bin") for name in names), strict=True)
    return torch.cat(images), torch.cat(labels)


def _cifar10_batch(path: Path) -> Split:
    if not path.exists():
        raise BadInput(f"{path}: missing; CIFAR-10 is the six files {', '.join(f'{n}.bin' for n in CIFAR10_BATCHES)}")
    count, found = CIFAR10_SIDE**2, path.stat().st_size
    if found != count * CIFAR10_RECORD:
        raise BadInput(f"{path}: expected {count * CIFAR10_RECORD:,} bytes ({count:,} images), found {found:,}")
    records = np.fromfile(path, np.uint8).reshape(count, CIFAR10_RECORD)
    _check_labels(records[:, 0], path)
    images = torch.from_numpy(records[:, 1:].copy()).view(count, 3, 32, 32)
    return images, torch.from_numpy(records[:, 0].astype(np.int64))


def _check_labels(labels: np.ndarray, path: Path) -> None:
    if labels.max() > 9:
        raise BadInput(f"{path}: expected labels from 0 to 9, found {labels.max()}")


def read_text(path: str | Path) -> str:
    """Text in UTF-8 or, for files older than that habit, Windows-1252."""
    found = Path(path).read_bytes()
    for encoding in ("utf-8", "cp1252"):
        try:
            return found.decode(encoding)
        except UnicodeDecodeError as error:
            where = error
    raise BadInput(f"{path}: expected text, found byte {found[where.start]:#04x} at {where.start:,}")


# --- unpacking -------------------------------------------------------------------------------------------------------


def unpack_cifar10_archive(archive: Path, into: Path) -> Path:
    """The six binary files out of the official tar.gz, under `into`; nothing else of the archive is written."""
    wanted = {f"cifar-10-batches-bin/{name}.bin" for name in CIFAR10_BATCHES}
    try:
        with _folder(into / "cifar-10-batches-bin") as folder, tarfile.open(archive, "r:gz") as members:
            for member in members:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                    raise BadInput(f"{archive}: member {member.name!r} is a link or points out of its folder; refused")
                source = members.extractfile(member) if str(path) in wanted else None
                if source:
                    wanted.discard(str(path))
                    with (folder / path.name).open("wb") as file:
                        shutil.copyfileobj(source, file)
            if wanted:
                raise BadInput(f"{archive}: expected {', '.join(sorted(wanted))} in it, found no such member")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{archive}: damaged archive ({error})") from None
    return into / "cifar-10-batches-bin"


def unpack_cifar10_atlases(atlases: Path, into: Path) -> Path:
    """The six binary files out of the atlases and `labels.npz`, under `into`."""
    target = into / "cifar-10-batches-bin"
    if target.exists():
        return target
    try:
        from PIL import Image
    except ImportError:
        raise DataNotFound(f"{atlases} holds CIFAR-10 as WebP; reading that needs pillow: pip install pillow") from None
    labels = _atlas_labels(atlases / "labels.npz")
    with _folder(target) as folder:
        for name, part in zip(CIFAR10_BATCHES, labels, strict=True):
            path = atlases / f"{name}.webp"
            try:
                with Image.open(path, formats=["WEBP"]) as picture:
                    sheet = np.asarray(picture.convert("RGB"))
            except (OSError, SyntaxError) as error:
                raise BadInput(f"{path}: expected a WebP image, found none that can be read ({error})") from None
            if sheet.shape != (32 * CIFAR10_SIDE, 32 * CIFAR10_SIDE, 3):
                raise BadInput(
                    f"{path}: expected {32 * CIFAR10_SIDE} x {32 * CIFAR10_SIDE} pixels, found {sheet.shape}"
                )
            cells = sheet.reshape(CIFAR10_SIDE, 32, CIFAR10_SIDE, 32, 3).transpose(
                0, 2, 4, 1, 3
            )  # row, column, colour, y, x
            np.concatenate([part[:, None], cells.reshape(len(part), -1)], 1).tofile(folder / f"{name}.bin")
    return target


def _atlas_labels(path: Path) -> np.ndarray:
    """(6, images of an atlas), in the order of CIFAR10_BATCHES."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            labels = np.concatenate([stored["train_y"], stored["test_y"]])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path}: expected arrays train_y and test_y ({error})") from None
    if labels.shape != (6 * CIFAR10_SIDE**2,):
        raise BadInput(f"{path}: expected {6 * CIFAR10_SIDE**2:,} labels, found {labels.shape}")
    return labels.astype(np.uint8).reshape(6, -1)


@contextlib.contextmanager
def _folder(target: Path) -> Iterator[Path]:
    """A folder to fill that becomes `target` when all went well; of several processes that do this, the first wins."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if not target.exists():
            partial.rename(target)
    except OSError:
        if not target.exists():  # else another process was quicker
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
