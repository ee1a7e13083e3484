"""Batches on their way to a GPU: through page-locked buffers, on a stream of their own, while the last step runs.

host      gather 2 | launch step 2 | gather 3 | ...
copies        [copy 2]                  [copy 3]
device    step 1 ........ | step 2 ...........
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import nest
from .batches import Batch

RING = 3  # buffers a tensor: one being filled, one being copied, one to spare


def sent_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches on the device; a step that uses one waits for its copy there, not on the host."""
    stream = torch.cuda.Stream(device)
    slots = [_Slot() for _ in range(RING)]
    for number, batch in enumerate(batches):
        slot = slots[number % RING]
        current = torch.cuda.current_stream(device)
        parts = slot.send((batch.input, batch.target, batch.keys), device, stream)
        current.wait_stream(stream)
        for tensor in nest.leaves(parts):
            tensor.record_stream(current)
        batch.input, batch.target, batch.keys = parts
        yield batch


class _Slot:
    """Page-locked buffers for one batch, used again once their last copy is done."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._copied: torch.cuda.Event | None = None

    def send(self, parts: Any, device: torch.device, stream: torch.cuda.Stream) -> Any:
        if self._copied is not None:
            self._copied.synchronize()
        tensors = [tensor for tensor in nest.leaves(parts) if tensor.device.type == "cpu"]
        locked = {id(tensor): self._lock(place, tensor) for place, tensor in enumerate(tensors)}
        with torch.cuda.stream(stream):
            sent = nest.each(parts, lambda tensor: locked.get(id(tensor), tensor).to(device, non_blocking=True))
            self._copied = torch.cuda.Event()
            self._copied.record(stream)
        return sent

    def _lock(self, place: int, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        if place == len(self._buffers):
            self._buffers.append(torch.empty(0, dtype=torch.uint8))
        if self._buffers[place].numel() < size:
            self._buffers[place] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        view = self._buffers[place][:size].view(tensor.dtype).view(tensor.shape)
        return view.copy_(tensor)
