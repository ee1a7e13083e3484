"""The data of a script, seen from its DataLoaders and its random numbers: who reads what, in which order, in which pass."""

from __future__ import annotations

import hashlib
import random
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

KEPT = 64  # indices kept of each pass: enough to tell one order from another
ROWS = 512


class Data:
    """Loaders are numbered as they are made, which is the same on every rank and in every run."""

    def __init__(self, witness: Any):
        import torch
        from torch.utils.data import dataloader

        self._witness = witness
        self.trained: set[int] = set()  # numbers of the loaders whose batches were trained on
        self.passes: list[dict[str, Any]] = []
        self.passes_made = 0  # over loaders that were trained on
        self.fetched: int | None = None  # the loader of the batch at hand
        self.fetches: dict[int, int] = {}  # batches that each loader has given
        self._loaders = 0
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.random = Random()
        wrap = witness.patches.wrap
        wrap(dataloader.DataLoader, "__init__", self._making)
        wrap(dataloader.DataLoader, "__iter__", self._passing)
        iterator = getattr(dataloader, "_BaseDataLoaderIter", None)
        wrap(iterator, "__init__", self._iterating)
        wrap(iterator, "_next_index", self._indexing)
        wrap(iterator, "__next__", self._fetching)
        wrap(torch, "randperm", self._permuting)

    def _making(self, original: Any) -> Any:
        def make(loader: Any, /, dataset: Any, *args: Any, **kwargs: Any) -> None:
            number = self._loaders
            self._loaders += 1
            if (
                kwargs.get("num_workers") and kwargs.get("worker_init_fn") is None
            ):  # so that all is drawn in this process
                kwargs |= {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0}
                kwargs.pop("multiprocessing_context", None)
            self._witness.changes.making_loader(number, dataset, args, kwargs)
            original(loader, dataset, *args, **kwargs)
            self._numbers[loader] = number

        return make

    def _passing(self, original: Any) -> Any:
        def begin(loader: Any) -> Any:
            number = self._numbers.get(loader, -1)
            before = sum(one["loader"] == number for one in self.passes)
            self._witness.changes.beginning_pass(number, loader, before)
            print_of = self.random.aside(lambda: _fingerprint(getattr(loader, "dataset", None))) if not before else None
            self.passes.append({"loader": number, **_described(loader), "print": print_of, "first": [], "batches": 0})
            self.passes_made += number in self.trained
            return original(loader)

        return begin

    def _iterating(self, original: Any) -> Any:
        def begin(iterator: Any, loader: Any, /, *args: Any, **kwargs: Any) -> None:
            iterator.witnessed = self._numbers.get(loader, -1), deque()
            original(iterator, loader, *args, **kwargs)

        return begin

    def _indexing(self, original: Any) -> Any:
        def index(iterator: Any) -> Any:
            chosen = original(iterator)
            iterator.witnessed[1].append(chosen)
            if not getattr(iterator, "_num_workers", 0):
                self.random.mark()
            return chosen

        return index

    def _fetching(self, original: Any) -> Any:
        def fetch(iterator: Any) -> Any:
            number, chosen = iterator.witnessed
            made = next((one for one in reversed(self.passes) if one["loader"] == number), None)
            if made is None:
                return original(iterator)
            if self._witness.hurrying and number in self.trained and made["batches"] >= self._witness.updates.group:
                raise StopIteration
            batch = self._witness.changes.fetching(number, lambda: original(iterator))
            self.fetched, made["batches"] = number, made["batches"] + 1
            self.fetches[number] = self.fetches.get(number, 0) + 1
            indices = chosen.popleft() if chosen else None
            if isinstance(indices, list | tuple) and len(made["first"]) < KEPT:
                made["first"] += [int(one) for one in indices if isinstance(one, int)][: KEPT - len(made["first"])]
            self.random.fetched(aside=bool(getattr(iterator, "_num_workers", 0)))
            return batch

        return fetch

    def _permuting(self, original: Any) -> Any:
        """An order that all ranks draw alike and take parts of is no fault."""

        def permute(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.random.mark()
            return result

        return permute

    def trains(self) -> None:
        """A backward pass came: the batch at hand was for training."""
        if self.fetched is not None and self.fetched not in self.trained:
            self.trained.add(self.fetched)
            self.passes_made += sum(one["loader"] == self.fetched for one in self.passes)

    def facts(self) -> dict[str, Any]:
        return {"passes": self.passes, "trained": sorted(self.trained)}


def _described(loader: Any) -> dict[str, Any]:
    sampler = getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None and type(batches).__module__.split(".")[0] != "torch":
        sampler = batches  # somebody's own, which chooses whole batches
    elif batches is not None and hasattr(batches, "sampler"):
        sampler = batches.sampler
    return {
        "sampler": type(sampler).__name__,
        "epoch": getattr(sampler, "epoch", None),
        "shuffle": getattr(sampler, "shuffle", None),
        "sets_epoch": hasattr(sampler, "set_epoch"),
        "sampler_length": _length(sampler),
        "dataset_length": _length(getattr(loader, "dataset", None)),
        "length": _length(loader),
    }


def _fingerprint(dataset: Any) -> list[str] | None:
    """Words for a few samples, to tell whether ranks read the same data; None where it has no order."""
    length = _length(dataset)
    if not length or not hasattr(dataset, "__getitem__"):
        return None
    try:
        samples = [dataset[at] for at in sorted({0, length // 2, length - 1})]
        return [word for tensor in tensors_in(samples) for word in rows_of([tensor.reshape(1, -1)])]
    except Exception:  # a dataset that cannot be asked like this is not asked
        return None


def tensors_in(nest: Any) -> list[Any]:
    if hasattr(nest, "requires_grad") and hasattr(nest, "shape"):
        return [nest]
    inner = nest.values() if hasattr(nest, "values") else nest if isinstance(nest, list | tuple) else ()
    return [one for part in inner for one in tensors_in(part)]


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def rows_of(tensors: list[Any]) -> list[str]:
    """A word per sample of a batch, equal where the samples are; tensors of another length than the first are left out."""
    columns = []
    for tensor in tensors:
        if tensor.dim() and len(tensor) == len(tensors[0]):
            flat = tensor.detach()[:ROWS].cpu().contiguous().reshape(min(ROWS, len(tensor)), -1)
            columns.append((flat.float() if str(flat.dtype) == "torch.bfloat16" else flat).numpy())
    parts = [b"".join(column[at].tobytes() for column in columns) for at in range(len(columns[0]) if columns else 0)]
    return [hashlib.blake2b(part, digest_size=8).hexdigest() for part in parts]


class Random:
    """The states of the three generators that everybody shares: torch's, numpy's and Python's."""

    NAMES = ("torch", "numpy", "random")

    def __init__(self) -> None:
        self.start: list[str] | None = None
        self._loaded: list[str] | None = None  # when the batch at hand had come
        self._loading = [False] * len(self.NAMES)  # drew while it was read

    def mark(self) -> None:
        """From here on, what is drawn is drawn for training."""
        self.start, self._loaded, self._loading = self.states(), None, [False] * len(self.NAMES)

    def fetched(self, aside: bool) -> None:
        """A batch has come; `aside`: read by other processes, so that nothing was drawn here."""
        if aside or self.start is None:
            self.mark()
        self._loaded = self.states()
        assert self.start is not None
        self._loading = [one != other for one, other in zip(self.start, self._loaded, strict=True)]

    def inside(self) -> None:
        """The model is called: what numpy and Python drew since the batch came chose samples, or nothing of interest."""
        if self.start is not None:
            kept = [torch_or_loading or not at for at, torch_or_loading in enumerate(self._loading)]
            self.start = [old if keep else new for keep, old, new in zip(kept, self.start, self.states(), strict=True)]

    def drawn(self) -> dict[str, Any] | None:
        """The states at the start, which have moved since, and whether any did after the batch had come."""
        if self.start is None:
            return None
        now = self.states()
        drew = [one != other for one, other in zip(self.start, now, strict=True)]
        return {"start": self.start, "drew": drew, "later": self._loaded is not None and self._loaded != now}

    def aside(self, action: Callable[[], Any]) -> Any:
        """The same numbers for the action on every rank, and none taken from anybody."""
        import numpy
        import torch

        kept = torch.get_rng_state(), numpy.random.get_state(), random.getstate()
        try:
            torch.manual_seed(0)
            numpy.random.seed(0)
            random.seed(0)
            return action()
        finally:
            torch.set_rng_state(kept[0])
            numpy.random.set_state(kept[1])
            random.setstate(kept[2])

    def states(self) -> list[str]:
        import numpy
        import torch

        legacy: Any = numpy.random.get_state()
        parts = [torch.get_rng_state().numpy().tobytes(), legacy[1].tobytes() + bytes(str(legacy[2]), "ascii")]
        parts.append(repr(random.getstate()).encode())
        return [hashlib.blake2b(part, digest_size=8).hexdigest() for part in parts]
