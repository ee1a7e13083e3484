"""Batches on their way to a GPU: through page-locked memory, on a stream of their own, while the last step runs.

host      gather 2 | launch step 2 | gather 3 | ...
copies        [copy 2]                  [copy 3]
device    step 1 ........ | step 2 ...........
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from . import nest
from .batches import Batch


def sent_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches on the device; a step that uses one waits for its copy there, not on the host."""
    stream = torch.cuda.Stream(device)

    def send(tensor: Tensor) -> Tensor:
        locked = tensor if tensor.device.type != "cpu" or tensor.is_pinned() else tensor.pin_memory()
        return locked.to(device, non_blocking=True)

    for batch in batches:
        current = torch.cuda.current_stream(device)
        with torch.cuda.stream(stream):
            batch.input, batch.target, batch.keys = (
                nest.each(value, send) for value in (batch.input, batch.target, batch.keys)
            )
        current.wait_stream(stream)
        for tensor in nest.leaves((batch.input, batch.target, batch.keys)):
            tensor.record_stream(current)
        yield batch
