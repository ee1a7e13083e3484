"""How the caller has set torch's arithmetic, so that ranks compute the way the caller would.

torch keeps these switches in the process. A script that asks for deterministic kernels, for TF32 or for float64 means its
ranks too, which are other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import torch

_BACKENDS = (
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cudnn.allow_tf32",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    # Newer names of the same switches. Where a script uses these, torch refuses to read the older ones, and the other
    # way round they follow: so they come last.
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _set_backend(path: str, value: Any) -> None:
    owner, _, name = path.rpartition(".")
    setattr(attrgetter(owner)(torch.backends), name, value)


_SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic": (_deterministic, _set_deterministic),
    "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    **{path: (partial(attrgetter(path), torch.backends), partial(_set_backend, path)) for path in _BACKENDS},
}


def arithmetic() -> dict[str, Any]:
    """The switches of this process, those left out that this torch does not have or does not let us read."""
    return {name: value for name in _SWITCHES if (value := _read(name)) is not None}


def set_arithmetic(switches: dict[str, Any]) -> None:
    """Set what differs from this process's own."""
    for name, value in switches.items():
        if _read(name) != value:
            _SWITCHES[name][1](value)


def _read(name: str) -> Any:
    try:
        return _SWITCHES[name][0]()
    except (AttributeError, RuntimeError):
        return None
