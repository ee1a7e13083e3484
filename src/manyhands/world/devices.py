"""From what the user calls a device to one device per rank, and how many ranks there are when nobody says."""

from __future__ import annotations

import torch

from ..errors import BadInput
from ..record.cores import available_cores
from .torchrun_variables import started_by_torchrun, torchrun_world


def default_ranks(beside: int = 0) -> int:
    """One per GPU, else one per core, at least two; under torchrun, its processes but those `beside` that only serve."""
    if started_by_torchrun():
        return max(1, torchrun_world()[1] - beside)
    return max(2, torch.cuda.device_count() or available_cores())


def resolve_devices(spec: str, processes: int) -> list[torch.device]:
    """`auto`, `cpu`, `cuda` or a list such as `cpu,cuda:0,cuda:2`: a device for every process, taken in turn."""
    if not isinstance(spec, str) or not spec.strip():
        raise BadInput(f"device must be auto, cpu, cuda or a list such as cpu,cuda:0 (found {spec!r})")
    if spec == "auto":
        spec = "cuda" if torch.cuda.is_available() else "cpu"
    if spec == "cuda":
        _check_cuda(spec, None)
        devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    else:
        devices = [_one(part.strip(), spec) for part in spec.split(",")]
    return [devices[index % len(devices)] for index in range(processes)]


def _one(text: str, spec: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError:
        raise BadInput(
            f'no device named "{text}" in device={spec}; use auto, cpu, cuda or a list such as cpu,cuda:0'
        ) from None
    if device.type == "cuda":
        _check_cuda(spec, device.index)
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise BadInput(f"device {text} is not supported; use cpu or cuda")
    return device


def _check_cuda(spec: str, index: int | None) -> None:
    if not torch.cuda.is_available():
        raise BadInput(f"device={spec} but no GPU is available to torch {torch.__version__}; use --device cpu")
    if index is not None and index >= torch.cuda.device_count():
        raise BadInput(f"device={spec} but there are only {torch.cuda.device_count()} GPUs (cuda:0 is the first)")
