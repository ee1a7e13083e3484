"""Ranks compute with the switches of the caller's torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from manyhands.world.launch.arithmetic import arithmetic, set_arithmetic
from manyhands.world.launch.processes import launch


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = arithmetic()
    yield
    set_arithmetic(before)
    assert arithmetic() == before


def older_names() -> dict[str, Any]:
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_dtype(torch.float64)
    torch.backends.cudnn.benchmark = True
    return {
        "cudnn.allow_tf32": False,
        "matmul precision": "high",
        "deterministic": (True, True),
        "default dtype": torch.float64,
        "cudnn.benchmark": True,
    }


def newer_names() -> dict[str, Any]:
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    return {"cudnn.conv.fp32_precision": "ieee", "cuda.matmul.fp32_precision": "tf32"}


@pytest.mark.parametrize("set_switches", [older_names, newer_names])
def test_what_the_caller_asked_of_torch_holds_on_the_ranks(set_switches: Any) -> None:
    """A script's TF32, deterministic kernels and default type were once left behind in the caller."""
    expected, before = set_switches(), arithmetic()
    [found] = launch(lambda process: arithmetic(), 1)
    assert found == before == arithmetic()
    assert expected.items() <= found.items()
