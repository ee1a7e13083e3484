"""A DataLoader taken apart: its dataset, batch size, collate function and the like.

How samples are shuffled, batched and divided is decided here, the same under every strategy; of a loader it is taken what
there is to read, and in which portions. A sampler of its own cannot be kept, and is refused with the way out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from ..errors import BadInput

INSTEAD = (
    (DistributedSampler, "leave it out: every rank is given its own part of each batch anyway"),
    (SubsetRandomSampler, "give the dataset torch.utils.data.Subset(dataset, indices) instead"),
    (
        WeightedRandomSampler,
        "weigh the loss instead, or give a torch.utils.data.Subset that names samples several times",
    ),
    (RandomSampler, "leave out replacement and num_samples: an epoch has every sample once"),
)


@dataclass(frozen=True)
class LoaderParts:
    """What a DataLoader held."""

    dataset: Any
    batch_size: int
    collate: Callable[[list[Any]], Any] | None  # None: the default
    drop_last: bool
    workers: int
    notes: tuple[str, ...]  # what of it is not used, for the record

    @classmethod
    def of(cls, loader: DataLoader, field: str) -> LoaderParts:
        dataset, stream = loader.dataset, isinstance(loader.dataset, IterableDataset)
        _check(loader, field, stream)
        notes = []
        if field == "train" and not stream and isinstance(loader.sampler, SequentialSampler):
            notes.append("the DataLoader of task.train does not shuffle; here every epoch has an order of its own")
        if field == "test" and loader.drop_last:
            notes.append("the DataLoader of task.test drops its last samples; here every sample is evaluated")
        if loader.worker_init_fn is not None:
            notes.append(
                f"the worker_init_fn of task.{field}'s DataLoader is not called; random numbers are seeded here"
            )
        collate = None if loader.collate_fn is default_collate else loader.collate_fn
        assert loader.batch_size is not None
        return cls(dataset, loader.batch_size, collate, loader.drop_last, loader.num_workers, tuple(notes))


def _check(loader: DataLoader, field: str, stream: bool) -> None:
    whose = f"the DataLoader of task.{field}"
    if loader.batch_size is None:
        if loader.batch_sampler is None:
            raise BadInput(
                f"{whose} has batch_size=None; give a DataLoader that makes the batches, or a dataset of samples"
            )
        raise BadInput(
            f"{whose} has a batch sampler of its own ({type(loader.batch_sampler).__name__}); every strategy must see the "
            "same batches, so they are made here: give batch_size and shuffle instead"
        )
    sampler = loader.sampler
    if stream or type(sampler) is SequentialSampler:
        return
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset):  # type: ignore[arg-type]
        return
    instead = next((cure for kind, cure in INSTEAD if type(sampler) is kind), "use shuffle=True instead")
    raise BadInput(
        f"{whose} has a {type(sampler).__name__}, but which samples make a batch is decided here, "
        f"the same under every strategy; {instead}"
    )
