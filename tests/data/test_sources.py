"""Data as the user gives it: what holds no samples is bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from manyhands.data.sources import make_source
from manyhands.errors import BadInput


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (([], torch.zeros(3)), r"task.train inputs hold no tensor \(found list\)"),
        ((torch.zeros(3), {}), r"task.train targets hold no tensor \(found dict\)"),
        ((torch.tensor(1.0), torch.zeros(3)), r"task.train inputs hold a tensor without dimensions"),
    ],
)
def test_what_holds_no_samples_is_refused(data: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_source(data, None, "train")
