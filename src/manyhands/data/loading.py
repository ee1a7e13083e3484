"""Loading: samples read one by one, in this process or ahead of the step in worker processes.

`loader_workers="auto"` tries 0, 1, 2, ... workers in the first steps, a stretch of steps each, and keeps the smallest
number that leaves no wait, or the one whose steps were fastest. Where reading computes there are at most as many as
cores; where it waits (for a disk, a network) cores do not matter, and 1, 2, 4, 8, ... are tried. Which it is changes no
batch: what a Dataset draws at random depends on the sample alone.
"""

from __future__ import annotations

import resource
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from time import monotonic_ns, thread_time_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from .handover import handed_over
from .keys import sample_keys
from .order import Order, Shard
from .pairs import Pairs
from .process_state import seed_generators
from .stream import Part, StreamSource

COUNTED = 16  # steps of a trial that are timed
NO_WAIT = 0.05  # a wait below this part of the step is none
GAIN = 0.1  # what another worker must make a step shorter by
WIDEST = 16  # workers for each rank that are tried at most, where they only wait


MISSING = object()
THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)  # only Linux tells threads apart


class DatasetSource:
    """Samples one by one out of a map-style Dataset, collated into batches."""

    def __init__(self, dataset: Dataset, collate: Pairs | None = None):
        self.dataset = dataset
        self.collate = collate or Pairs()
        self._given = [(part, dict(vars(part))) for part in _parts(dataset)]

    def leave_behind(self, stays: Callable[[Any], bool]) -> None:
        """Take back what reading has set on the data set and what cannot be sent to a rank: files and connections that it
        opens with its first sample. A rank opens its own."""
        for part, given in self._given:
            for name, value in list(vars(part).items()):
                if value is not given.get(name, MISSING) and stays(value):
                    delattr(part, name)
                    if name in given:
                        setattr(part, name, given[name])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_given": []}

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def gather(self, indices: Tensor) -> tuple[Any, Any]:
        return self.collate([self.dataset[index] for index in indices.tolist()])

    def read(self, indices: Tensor, keys: Tensor) -> tuple[Any, Any]:
        """The same with the generators seeded by each sample's key: it is the same on any rank and in any worker."""
        return self.collate(self.samples(indices, keys))

    def samples(self, indices: Tensor, keys: Tensor) -> list[Any]:
        wanted, seeds = indices.tolist(), keys.tolist()
        several = getattr(self.dataset, "__getitems__", None)
        if several is not None:  # a Dataset that reads many at once
            seed_generators(seeds[0])
            return list(several(wanted))
        samples = []
        for index, seed in zip(wanted, seeds, strict=True):
            seed_generators(seed)
            samples.append(self.dataset[index])
        return samples


def _parts(dataset: Any) -> Iterator[Any]:
    """A data set and those it wraps (Subset, ConcatDataset and their like), as far as they keep attributes."""
    if isinstance(dataset, Dataset) and hasattr(dataset, "__dict__"):
        yield dataset
        for inner in (vars(dataset).get("dataset"), *(vars(dataset).get("datasets") or ())):
            yield from _parts(inner)


class Requests:
    """What a rank wants to read in an epoch: indices and keys, step by step. The sampler of a DataLoader."""

    def __init__(self, order: Order, shard: Shard):
        self.order, self.shard = order, shard
        self.epoch = self.first = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step in self.order.steps(self.epoch, self.first):
            indices, _ = self.order.filled(step, self.shard)
            yield indices, sample_keys(self.order.seed, self.epoch, indices)

    def __len__(self) -> int:
        return self.order.steps_per_epoch - self.first


class Loading:
    """The collated batches of one rank by `workers` processes, or by this one where there are none."""

    def __init__(self, source: DatasetSource | StreamSource, order: Order, shard: Shard, workers: int, pinned: bool):
        self.source, self.order, self.shard, self.workers, self.pinned = source, order, shard, workers, pinned
        self._requests = Requests(order, shard)
        self._loader: DataLoader | None = None

    def start(self, epoch: int, first: int) -> Iterator[Part]:
        """Begin to read an epoch from step `first` on; worker processes set off at once."""
        if isinstance(self.source, StreamSource):
            if not self.workers:
                return self.source.parts(self.order, self.shard, epoch, first)
            return _started(self._by_workers(_Pass(self.source, self.order, self.shard, epoch, first)))
        source, self._requests.epoch, self._requests.first = self.source, epoch, first
        if not self.workers:
            return (Part(source.read(*request)) for request in self._requests)
        self._loader = self._loader or self._by_workers(_Reads(source), sampler=self._requests, persistent_workers=True)
        return _started(self._loader)

    def _by_workers(self, dataset: Dataset, **options: Any) -> DataLoader:
        with _as_many_as_asked():
            return DataLoader(
                dataset,
                batch_size=None,
                collate_fn=_as_it_is,
                num_workers=self.workers,
                pin_memory=self.pinned,
                **options,
            )


@contextmanager
def _as_many_as_asked() -> Iterator[None]:
    """Without torch's doubt about more workers than cores: workers that sleep need none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _started(loader: DataLoader) -> Iterator[Any]:
    with _as_many_as_asked():
        return iter(loader)


class _Reads(Dataset):
    """Requests answered in a worker process."""

    def __init__(self, source: DatasetSource):
        self.source = source

    def __getitem__(self, request: tuple[Tensor, Tensor]) -> Any:
        return handed_over(Part(self.source.read(*request)))


class _Pass(IterableDataset):
    """An epoch of a stream read in a worker process."""

    def __init__(self, source: StreamSource, *of: Any):
        self.source, self.of = source, of

    def __iter__(self) -> Iterator[Any]:
        return (handed_over(part) for part in self.source.parts(*self.of))


def _as_it_is(batch: Any) -> Any:
    return batch


# ---------------------------------------------------------------- how many workers


class Trial(NamedTuple):
    """Mean nanoseconds of a step with some number of workers, how many of them waited for data, and whether that was
    because reading itself waits: known of this process's own reading, without workers."""

    step: float
    wait: float
    idle: bool = False


def choose(most: int, widest: int = WIDEST) -> Generator[int, Trial, int]:
    """Yields numbers of workers to try, is sent how they did, returns the one to keep."""
    found: dict[int, Trial] = {}
    best = workers = fruitless = 0
    while True:
        found[workers] = trial = yield workers
        if trial.step < found[best].step * (1 - GAIN):
            best, fruitless = workers, 0
        elif workers != best:
            fruitless += 1
        if trial.wait < NO_WAIT * trial.step or fruitless == 2:
            return best  # nothing is left to gain, or two more did not help
        idle = found[0].idle
        workers = max(1, 2 * workers) if idle else workers + 1
        if workers > (max(most, widest) if idle else most):
            return best


class Use(NamedTuple):
    """What this thread has used so far: nanoseconds of the clock and of a core, and how often it gave its core up."""

    clock: int
    cpu: int
    naps: int

    @classmethod
    def now(cls) -> Use:
        if THREAD is None:
            return cls(monotonic_ns(), monotonic_ns(), 0)
        return cls(monotonic_ns(), thread_time_ns(), resource.getrusage(THREAD).ru_nvcsw)

    def idle_since(self, before: Use) -> bool:
        """Whether most of the time went by waiting; one that computes can be kept from its core, but does not give it up."""
        return self.naps > before.naps and self.cpu - before.cpu < (self.clock - before.clock) / 2


class Auto:
    """The search for the number of workers, fed with the times of real steps."""

    def __init__(self, most: int, tell: Callable[[str], None]):
        self._search = choose(most)
        self._tell = tell
        self._tried: list[str] = []
        self.workers = next(self._search)
        self.found = False
        self._begin()

    def _begin(self) -> None:
        self._unsettled = 2 * (1 + self.workers)  # steps that wait for workers to start, or live on what they fetched
        self._counted = self._elapsed = self._waited = self._idle = self._last = 0

    def pause(self) -> None:
        """Time passes that is no step (evaluation), and loading starts again after it."""
        self._unsettled = max(self._unsettled, 2)

    def step(self, now: int, waited: int, idle: bool = False) -> None:
        """A step begins at `now`; the one before had waited so long for its batch, `idle` where it only waited."""
        if self._unsettled:
            self._unsettled -= 1
            self._last = _settled(now) if not self._unsettled else 0
            return
        self._counted += 1
        now = _settled(now) if self._counted == COUNTED else now
        self._elapsed, self._waited, self._last = self._elapsed + now - self._last, self._waited + waited, now
        self._idle += idle
        if self._counted == COUNTED:
            self._judge(Trial(self._elapsed / COUNTED, self._waited / COUNTED, self._idle > COUNTED / 2))

    def _judge(self, trial: Trial) -> None:
        self._tried.append(f"{self.workers}: {trial.step / 1e6:.2f} ms per step, {trial.wait / 1e6:.2f} of it waiting")
        try:
            self.workers = self._search.send(trial)
        except StopIteration as end:
            self.workers, self.found = end.value, True
            self._tell(f"loader_workers=auto keeps {self.workers} ({'; '.join(self._tried)})")
        self._begin()


def _settled(now: int) -> int:
    """The time when the device has done all it was given: only then is a stretch of steps over."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return monotonic_ns()
    return now
