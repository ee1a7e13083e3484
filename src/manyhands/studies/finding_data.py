"""What is wrong with a task's data: samples that change with every reading, and rows of the test set in the training set.

A sample is read twice under the same seed. A Dataset that draws from torch's, numpy's or Python's generators gives the same
one again, because these are seeded by the sample's key; one with a generator of its own does not, and every rank and
loader worker has a copy of that generator, which gives the same numbers on all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from time import monotonic
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from ..data import nest
from ..data.keys import sample_keys
from ..data.loading import DatasetSource
from ..data.process_state import seeded
from ..data.sources import Source, TensorSource
from ..strategies.job import Job

READ, READ_SECONDS = 16, 0.3  # samples that are read twice
TEST_ROWS, TRAIN_ROWS = 1_000, 100_000  # that are compared
ROW_SECONDS = 0.7  # for reading rows of a Dataset, and for those in memory
LEAST_SHARE = 0.02  # of the test rows looked at
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
SAME_SEED = torch.zeros(1, dtype=torch.int64)  # what is drawn for equal rows is equal
DEPTH, OBJECTS = 4, 300  # how far a Dataset is looked into


class Finding(NamedTuple):
    name: str
    message: str
    advice: str


def data_findings(job: Job) -> Iterator[Finding]:
    yield from _generator(job)
    yield from _overlap(job)


# ---------------------------------------------------------------- generators of its own


def _generator(job: Job) -> Iterator[Finding]:
    source = job.train
    if job.task.augment is not None and not _same_augmented(job):
        message = (
            "task.augment makes something else of the same batch, keys and seed each time: it draws from a generator of its "
            "own, whose copies give the same numbers on every rank."
        )
        yield Finding("generator", message, "draw from the keys (mh.augment.uniform), or from torch's own generator")
    if not isinstance(source, DatasetSource):
        return
    own = [(name, generator, _state(generator)) for name, generator in _generators_in(source.dataset)]
    began = monotonic()
    for index in range(min(READ, len(source))):
        if not _same_again(source, index):
            drawn = dict.fromkeys(name for name, generator, before in own if _moved(generator, before))
            where = f" ({', '.join(drawn)})" if drawn else ""
            message = (
                f"Sample {index} of task.train is another one each time it is read under the same seed: it draws from a "
                f"generator of its own{where}, whose copies give the same numbers on every rank and in every loader worker."
            )
            advice = (
                "draw from torch, numpy.random or random, which are seeded for every sample, or make a generator from the "
                "index in __getitem__"
            )
            yield Finding("generator", message, advice)
            break
        if monotonic() - began > READ_SECONDS:
            break


def _same_augmented(job: Job) -> bool:
    _, _, augment = job.copies()
    assert augment is not None
    results = []
    with seeded(0):
        input, _ = job.example(READ)
    for _ in range(2):
        with seeded(0):
            results.append([*nest.leaves(augment(nest.each(input, Tensor.clone), torch.arange(nest.count(input))))])
    return all(_equal(one, two) for one, two in zip(*results, strict=True))


def _same_again(source: DatasetSource, index: int) -> bool:
    indices, keys = torch.tensor([index]), sample_keys(0, 0, torch.tensor([index]))
    with seeded(0):
        one, two = ([*nest.leaves(source.read(indices, keys))] for _ in range(2))
    return len(one) == len(two) and all(_equal(a, b) for a, b in zip(one, two, strict=True))


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other) or (torch.isnan(one.double()).any()))


def _generators_in(root: Any) -> Iterator[tuple[str, Any]]:
    """Generators that an object holds, or that its methods name among their module's variables."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("", root, 0)]
    while waiting and len(seen) < OBJECTS:
        name, item, depth = waiting.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, GENERATORS):
            yield name, item
        elif depth < DEPTH:
            waiting += [(part, held, depth + 1) for part, held in _held(name, item)]


def _held(name: str, item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, list | tuple):
        yield from ((f"{name}[{place}]", held) for place, held in enumerate(item[:20]))
    elif isinstance(item, FunctionType):
        known = item.__globals__
        yield from ((word, known[word]) for word in _names(item.__code__) if isinstance(known.get(word), GENERATORS))
        cells = zip(item.__code__.co_freevars, item.__closure__ or (), strict=False)
        yield from ((word, cell.cell_contents) for word, cell in cells)
    elif not isinstance(item, Tensor | np.ndarray | str | bytes | int | float | type | None):
        yield from ((f"{name}.{word}" if name else word, held) for word, held in getattr(item, "__dict__", {}).items())
        yield from (
            (word, function)
            for kind in type(item).__mro__
            if not kind.__module__.startswith(("torch", "builtins"))
            for word, function in vars(kind).items()
            if isinstance(function, FunctionType)
        )


def _names(code: CodeType) -> Iterator[str]:
    """Names that a function uses, those of functions inside it too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()


def _moved(generator: Any, before: Any) -> bool:
    return str(_full(before)) != str(_full(_state(generator)))


def _full(state: Any) -> Any:
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, tuple) else [state]
    return [
        part.tolist() if hasattr(part, "tolist") else _full(part) if isinstance(part, dict) else part for part in parts
    ]


# ---------------------------------------------------------------- rows in both sets


def _overlap(job: Job) -> Iterator[Finding]:
    if job.test is None:
        return
    found = _by_indices(job.train, job.test) or _by_rows(job.train, job.test)
    if found is None or found[0] < max(1, LEAST_SHARE * found[1]):
        return
    same, looked = found
    message = f"{same:,} of {looked:,} test samples that were looked at are in the training set as well."
    advice = (
        "split the data before anything else is done with it: an accuracy on these samples says nothing about new ones"
    )
    yield Finding("train_test_overlap", message, advice)


def _by_indices(*sources: Source) -> tuple[int, int] | None:
    """Of two parts of one Dataset, their common indices; of a part and its whole, all."""
    train, test = (source.dataset if isinstance(source, DatasetSource) else None for source in sources)
    if not isinstance(test, Subset):
        return None
    if isinstance(train, Subset) and train.dataset is test.dataset:
        return len(set(train.indices) & set(test.indices)), len(test.indices)
    return (len(test.indices), len(test.indices)) if test.dataset is train else None


def _by_rows(train: Source, test: Source) -> tuple[int, int] | None:
    """Test rows that are found among the training rows, less those that rows have in common by themselves."""
    mine, theirs = _rows(test, TEST_ROWS), _rows(train, TRAIN_ROWS)
    if not mine or not theirs:
        return None
    known = set(theirs)
    repeated = 1 - len(known) / len(theirs) + 1 - len(set(mine)) / len(mine)  # data of few values repeats itself
    same = sum(row in known for row in mine)
    return (same, len(mine)) if same > 2 * repeated * len(mine) else (0, len(mine))


def _rows(source: Source, most: int) -> list[int]:
    """Digests of samples' inputs, spread evenly over the set, as many as time allows."""
    count = min(most, len(source))
    places = torch.linspace(0, len(source) - 1, count).round().long().unique()
    began, rows = monotonic(), []
    step = 2_000 if isinstance(source, TensorSource) else 1
    order = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(0))]
    with seeded(0):
        for start in range(0, len(order), step):
            chosen = order[start : start + step]
            if isinstance(source, TensorSource):
                rows += _digests([*nest.leaves(source.gather(chosen, target=False)[0])])
            elif isinstance(source, DatasetSource):
                rows += _digests([*nest.leaves(source.read(chosen, SAME_SEED)[0])])
            if monotonic() - began > ROW_SECONDS:
                break
    return rows


def _digests(leaves: Sequence[Tensor]) -> list[int]:
    """One per row: the hash of its bytes."""
    flat = [leaf.detach().cpu().contiguous().reshape(len(leaf), -1) for leaf in leaves]
    arrays = [leaf.view(torch.uint8).numpy() for leaf in flat]
    return [hash(tuple(array[row].tobytes() for array in arrays)) for row in range(len(arrays[0]))]
