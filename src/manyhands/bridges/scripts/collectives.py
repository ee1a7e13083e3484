"""Communication of a script: the collectives it calls, and those that DistributedDataParallel makes inside backward.

DDP reduces its buckets in C++ while backward goes on, where no hook of Python's comes. It keeps times of its own: when
the gradients were all computed, and when the last bucket was there. What lies between is communication that the step
waited for, and is moved from backward to communication; what lay before was hidden. DDP keeps them for some steps
only; on CPU, where that costs nothing, it is asked to keep them for all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

from .patches import Patches
from .steps import COMMUNICATION, Steps

FIRST_STEPS, READ_FIRST, READ_EVERY = 64, 2, 8  # DDP's figures take a tenth of a millisecond to read
HANDED_OVER = {  # which argument a rank hands over, where it is not the first; None: it only receives
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "all_to_all": 1,
    "all_to_all_single": 1,
    "reduce_scatter": 1,
    "reduce_scatter_tensor": 1,
    "recv": None,
    "wait": None,
}
CALLS = [
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "monitored_barrier",
    "all_reduce_coalesced",
]


class Collectives:
    """Tells `Steps` of communication, and keeps count of what DDP did."""

    def __init__(self, steps: Steps, patches: Patches, thread: int):
        self.steps, self._thread = steps, thread
        self.used = False  # the script has communicated in a way that can be seen
        self.available = False
        self._wrapped: list[_Wrapped] = []
        import torch.distributed as dist

        self._dist = dist
        if not dist.is_available():
            return
        from torch.distributed import distributed_c10d
        from torch.nn.parallel import DistributedDataParallel

        self.available = True
        for name in CALLS:
            wrapped = self._around(getattr(dist, name, None), name)
            for owner in (dist, distributed_c10d):
                patches.wrap(owner, name, partial(_instead, wrapped))
        patches.wrap(distributed_c10d.Work, "wait", lambda original: self._around(original, "wait"))
        patches.wrap(DistributedDataParallel, "__init__", self._constructing)
        steps.on_step = self.read

    def _around(self, original: Callable[..., Any] | None, name: str) -> Any:
        steps, thread, position = self.steps, self._thread, HANDED_OVER.get(name, 0)

        def communicate(*args: Any, **kwargs: Any) -> Any:
            assert original is not None
            if get_ident() != thread or steps.phase == COMMUNICATION:
                return original(*args, **kwargs)
            before = steps.switch(COMMUNICATION)
            if position is not None:
                steps.communicated(_payload(args[position : position + 1]))
            self.used = True
            try:
                return original(*args, **kwargs)
            finally:
                steps.switch(before)

        return communicate

    # ------------------------------------------------------------ DistributedDataParallel

    def _constructing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def construct(module: Any, /, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self._wrapped.append(_Wrapped(module))
            self.used = True

        return construct

    def read(self, last: bool = False) -> None:
        """Book what DDP's communication has cost since the last look."""
        steps = self.steps.totals.steps
        if not last and steps % (READ_FIRST if steps < FIRST_STEPS else READ_EVERY):
            return
        for wrapped in self._wrapped:
            exposed, hidden, payload = wrapped.news(self.steps.totals.backwards if last else 0)
            self.steps.totals.expose(exposed)
            self.steps.totals.overlapped += hidden
            self.steps.totals.bytes += payload

    @property
    def initialized(self) -> bool:
        return self.available and self._dist.is_initialized()


class _Wrapped:
    """One DDP module: its times up to the last look."""

    def __init__(self, module: Any):
        self._module: Callable[[], Any] = weakref.ref(module)
        self._known = (0, 0, 0)
        self._all = getattr(module, "device_type", "") == "cpu"  # every pass is timed, not some of them
        try:
            if self._all:
                module._set_ddp_runtime_logging_sample_rate(1)
        except (AttributeError, RuntimeError):  # this torch has other names for it: backward stays whole
            self._module = lambda: None

    def news(self, passes_made: int = 0) -> tuple[int, int, int]:
        """Nanoseconds the backward passes stood still for communication and had it hidden, and bytes, since the last look.

        `passes_made`, at the end: where some passes were timed, they stand for all. A pass is known when the next one
        begins; the last one stays with backward, for guessing it from the mean would take away what others computed.
        """
        module = self._module()
        if module is None:
            return 0, 0, 0
        try:
            figures = module._get_ddp_logging_data()
        except (AttributeError, RuntimeError):
            return 0, 0, 0
        passes = figures.get("iteration", 0)
        if not self._all:
            passes = max(passes, passes_made)
        hidden = figures.get("avg_backward_compute_comm_overlap_time", 0) * passes
        exposed = max(0, figures.get("avg_backward_comm_time", 0) * passes - hidden)
        now = exposed, hidden, figures.get("total_parameter_size_bytes", 0) * passes
        fresh = tuple(max(0, new - old) for new, old in zip(now, self._known, strict=True))
        self._known = now
        return fresh[0], fresh[1], fresh[2]


def _instead(wrapped: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """The same function under all its names."""
    return wrapped


def _payload(args: tuple[Any, ...]) -> int:
    """Bytes of a tensor that a collective hands over, or of a list of them."""
    first: Any = args[0] if args else None
    tensors: Any = first if isinstance(first, list | tuple) else [first]
    return sum(item.numel() * item.element_size() for item in tensors if hasattr(item, "element_size"))
