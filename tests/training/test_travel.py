"""What of a task cannot be sent to a rank is named with its place."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import manyhands as mh
from manyhands.training.travel import culprit


class Holding(Dataset[Any]):
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.ones(4), index % 2


def test_what_cannot_travel_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()
    with (tmp_path / "file").open("w") as file:
        assert culprit(lambda: 3, "task.loss") is None
        for value, place in (
            (Holding(inner={"a": [1, lock]}), "task.train.inner['a'][1]"),
            (Holding(rows=(i for i in range(3))), "task.train.rows"),
            (Holding(file=file), "task.train.file"),
            (partial(print, file=file), "task.train.keywords['file']"),
            (lambda: lock, "task.train's variable lock"),
            (nn.Sequential(nn.Linear(2, 2), nn.Identity()), None),
        ):
            found = culprit(value, "task.train")
            assert (found and found[0]) == place


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_a_dataset_with_a_lock_is_bad_input(strategy: str) -> None:
    """It ended in a traceback of pickle that named neither the task nor the place."""
    task = mh.Task(
        lambda: nn.Linear(4, 2), Holding(guard=threading.Lock()), F.cross_entropy, partial(torch.optim.SGD, lr=0.1)
    )
    words = r"task\.train\.guard is a lock \(lock\), which cannot be sent to a rank; make it where it is first used"
    with pytest.raises(mh.BadInput, match=words):
        mh.fit(task, strategy, progress=False)
