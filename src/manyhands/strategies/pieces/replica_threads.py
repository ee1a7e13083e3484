"""One lasting thread a replica, forward and backward: calls that run side by side and stay differentiable.

torch runs the backward pass of CPU operations on the thread that asks for it, so replicas on the CPU would take
turns in backward. Here each call records a graph of its own, cut off at its inputs and outputs, and each thread
walks its own graph back. On GPUs torch has a thread a device already: one walk over all graphs uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from time import monotonic_ns
from typing import Any

import torch
from torch import Tensor, nn

from ...data import nest
from ...model.layer_costs import dense_parts


class Threads:
    """A thread for every device of a list, and the time each one has worked."""

    def __init__(self, devices: Sequence[torch.device]):
        self.devices = list(devices)
        self.forward_ns = [0] * len(devices)
        self.backward_ns = [0] * len(devices)
        self.forward_wall = self.backward_wall = 0  # nanoseconds from the first start to the last end
        self.on_cpu = all(device.type == "cpu" for device in devices)
        self.failed: int | None = None  # the replica whose work raised
        self._workers: list[ThreadPoolExecutor] = []

    def __reduce__(self) -> Any:
        return Threads, (self.devices,)  # a copy starts threads of its own

    def run(self, call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`call(index, *arguments[index])` for every index at once; gradients flow to the tensors in the arguments."""
        calls = _Calls(self, call, arguments)
        tensors = _InThreads.apply(calls, *calls.tensors)
        return calls.outputs_from(tensors)

    def at_once(self, work: Sequence[Callable[[], Any]], spent: list[int]) -> list[Any]:
        """Do each piece of work on its own thread and wait for all; the first failure is raised, with its number."""
        if len(work) == 1:
            return [self._timed(0, work[0], spent)]
        for index in range(len(self._workers), len(work)):
            self._workers.append(ThreadPoolExecutor(1, f"replica-{index}", _wake, (self.devices[index],)))
        futures: list[Future[Any]] = [
            worker.submit(self._timed, index, piece, spent)
            for index, (worker, piece) in enumerate(zip(self._workers, work, strict=False))
        ]
        failures = [future.exception() for future in futures]  # waits for every one
        for failure in failures:
            if failure is not None:
                raise failure
        return [future.result() for future in futures]

    def _timed(self, index: int, work: Callable[[], Any], spent: list[int]) -> Any:
        began = monotonic_ns()
        try:
            return work()
        except Exception:
            self.failed = index
            raise
        finally:
            spent[index] += monotonic_ns() - began


class _Calls:
    """The calls of one run: their arguments as leaves of graphs of their own, their outputs, their gradients."""

    def __init__(self, threads: Threads, call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]):
        self.threads, self.call, self.arguments = threads, call, arguments
        self.tensors = list(nest.leaves(list(arguments)))
        self.recording = torch.is_grad_enabled()
        self.surroundings = [_surroundings(device) for device in threads.devices[: len(arguments)]]
        self.leaves: list[list[Tensor]] = []
        self.results: list[Any] = []

    def forward(self) -> list[Tensor]:
        own = [nest.each(arguments, self._leaf) for arguments in self.arguments]
        self.leaves = [list(nest.leaves(arguments)) for arguments in own]
        began = monotonic_ns()
        work = [lambda index=index: self._forward(index, own[index]) for index in range(len(own))]  # type: ignore[misc]
        self.results = self.threads.at_once(work, self.threads.forward_ns)
        self.threads.forward_wall += monotonic_ns() - began
        return list(nest.leaves(self.results))

    def _leaf(self, tensor: Tensor) -> Tensor:
        if not (self.recording and tensor.requires_grad):
            return tensor.detach()
        return nn.Parameter(tensor.detach())

    def _forward(self, index: int, arguments: tuple[Any, ...]) -> Any:
        with ExitStack() as stack:
            for enter in self.surroundings[index]:
                stack.enter_context(enter())
            stack.enter_context(torch.set_grad_enabled(self.recording))
            return self.call(index, *arguments)

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        remaining = iter(gradients)
        asked = []  # (outputs, their gradients, leaves) of every call
        for result, leaves in zip(self.results, self.leaves, strict=True):
            pairs = [(output, next(remaining)) for output in nest.leaves(result)]
            known = [(output, gradient) for output, gradient in pairs if gradient is not None and output.requires_grad]
            asked.append(
                ([o for o, _ in known], [g for _, g in known], [leaf for leaf in leaves if leaf.requires_grad])
            )
        self.results = []  # the graphs may go as soon as they have been walked
        began = monotonic_ns()
        if self.threads.on_cpu:
            work = [lambda item=item: _gradients(*item) for item in asked]  # type: ignore[misc]
            found = self.threads.at_once(work, self.threads.backward_ns)
        else:
            found = _together(asked)
        self.threads.backward_wall += monotonic_ns() - began
        every = iter([gradient for part in found for gradient in part])
        return [next(every) if leaf.requires_grad else None for leaves in self.leaves for leaf in leaves]

    def outputs_from(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The nests the calls gave, with the tensors that autograd follows in them."""
        remaining = iter(tensors)
        outputs: list[Any] = nest.each(self.results, lambda _: next(remaining))
        if not self.recording:
            self.results = []
        return outputs


class _InThreads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, calls: _Calls, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.calls = calls
        ctx.set_materialize_grads(False)
        found = calls.forward()
        outputs = [output.detach() for output in found]
        ctx.mark_non_differentiable(
            *(out for out, inner in zip(outputs, found, strict=True) if not inner.requires_grad)
        )
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        if not ctx.calls.results:
            raise RuntimeError("these replicas have been walked back already; call the model again before backward")
        return None, *ctx.calls.backward(gradients)


def _wake(device: torch.device) -> None:
    """A new thread has no CUDA context until it runs a kernel, and cuBLAS complains of that."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.zeros(1, device=device)


def _gradients(outputs: list[Tensor], gradients: list[Tensor], leaves: list[Tensor]) -> Sequence[Tensor | None]:
    """Of the leaves, which belong to this one walk. Not by autograd.grad: reentrant checkpoints refuse to be part of it."""
    if not outputs or not leaves:
        return [None] * len(leaves)
    torch.autograd.backward(outputs, gradients)
    found = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return found


def _together(asked: list[tuple[list[Tensor], list[Tensor], list[Tensor]]]) -> list[Sequence[Tensor | None]]:
    """One walk over the graphs of all calls. We are on one of torch's device threads here: waiting for another
    thread of ours that needs this one would never end."""
    outputs, gradients, leaves = ([item for part in column for item in part] for column in zip(*asked, strict=True))
    found = list(_gradients(outputs, gradients, leaves))
    parts: list[Sequence[Tensor | None]] = []
    for _, _, own in asked:
        parts.append(found[: len(own)])
        found = found[len(own) :]
    return parts


def _surroundings(device: torch.device) -> list[Callable[[], Any]]:
    """What torch keeps a thread: arithmetic, device and stream of the caller, to be entered by a replica's thread."""
    kind = device.type
    enabled, dtype, cached = (
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),
        torch.is_autocast_cache_enabled(),
    )
    found: list[Callable[[], Any]] = []
    if enabled:
        found.append(lambda: torch.autocast(kind, dtype, True, cached))
    if kind == "cuda":
        stream = torch.cuda.current_stream(device)
        found += [lambda: torch.cuda.device(device), lambda: torch.cuda.stream(stream)]
    return found


@contextmanager
def saved_bytes(weights: Sequence[Tensor]) -> Iterator[dict[int, int]]:
    """Bytes that autograd keeps for backward on this thread, by storage; weights are not counted."""
    held = {tensor.untyped_storage().data_ptr() for tensor in weights}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        for part in dense_parts(tensor):
            if (storage := part.untyped_storage()).data_ptr() not in held:
                found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach() if tensor.grad_fn is not None else tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield found
