"""Devices by name: one for every process, and what is no device is bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from manyhands.errors import BadInput
from manyhands.world.devices import resolve_devices


def test_devices_are_taken_in_turn() -> None:
    assert resolve_devices("cpu", 3) == [torch.device("cpu")] * 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", r"device must be auto, cpu, cuda or a list such as cpu,cuda:0 \(found ''\)"),
        (0, r"device must be auto, cpu, cuda or a list such as cpu,cuda:0 \(found 0\)"),
        ("cpu,gpu", r'no device named "gpu" in device=cpu,gpu; use auto, cpu, cuda or a list'),
        ("meta", r"device meta is not supported; use cpu or cuda"),
        ("cuda:2", r"device=cuda:2 but there are only 2 GPUs \(cuda:0 is the first\)"),
    ],
)
def test_what_is_no_device_is_bad_input(spec: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BadInput, match=message):
        resolve_devices(spec, 2)
