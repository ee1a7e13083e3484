"""The hooks: what a script calls of torch, told to `Steps` in the order of the calls.

load       next() of a DataLoader, and iter(), which starts its workers
transfer   a tensor of the host sent to a device, outside of the model
forward    from the call of an outermost module to the backward pass; what is called inside costs a tenth of a microsecond
backward   torch.autograd.backward (what loss.backward() calls) and torch.autograd.grad
update     an optimizer's step

They are set when the script imports torch, change no argument and no result, and are taken out again in forked children
(a DataLoader's workers). Only the main thread is heard: what others do meanwhile is not what the step waits for.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from typing import Any

from .collectives import Collectives
from .patches import Patches
from .steps import LOAD, TRANSFER, Steps

DEEPEST = 4  # levels of a batch that are looked into for a tensor


class Hooks:
    """All hooks of this process, around one `Steps`."""

    def __init__(self, steps: Steps):
        import torch

        self.steps, self._torch = steps, torch
        self._thread = get_ident()
        self._patches = Patches()
        self._unscaled: tuple[Any, Any] | None = None  # a loss as a GradScaler made it, and as it was
        self._watch_loaders()
        self._watch_modules()
        self._watch_backward()
        self._watch_updates()
        if torch.backends.cuda.is_built():
            self._watch_transfers()
        self.collectives = Collectives(steps, self._patches, self._thread)
        os.register_at_fork(after_in_child=self._patches.undo)

    # ------------------------------------------------------------ load and transfer

    def _watch_loaders(self) -> None:
        from torch.utils.data import dataloader

        steps, thread = self.steps, self._thread

        def loading(original: Callable[..., Any], counts: bool) -> Callable[..., Any]:
            def load(self: Any) -> Any:
                if steps.phase == LOAD or get_ident() != thread:
                    return original(self)
                steps.load_begins()
                try:
                    batch = original(self)
                except StopIteration:
                    steps.load_ends(0, exhausted=True)
                    raise
                steps.load_ends(count_samples(batch) if counts else 0)
                return batch

            return load

        self._patches.wrap(dataloader.DataLoader, "__iter__", lambda original: loading(original, False))
        iterator = getattr(dataloader, "_BaseDataLoaderIter", None)  # not public: without it, loading is not seen
        self._patches.wrap(iterator, "__next__", lambda original: loading(original, True))

    def _watch_transfers(self) -> None:
        steps, thread = self.steps, self._thread
        compiling = self._torch.compiler.is_compiling

        def moving(original: Callable[..., Any]) -> Callable[..., Any]:
            def move(self: Any, /, *args: Any, **kwargs: Any) -> Any:
                if compiling() or steps.inside or steps.phase == TRANSFER or self.is_cuda or get_ident() != thread:
                    return original(self, *args, **kwargs)
                before = steps.switch(TRANSFER)
                try:
                    moved = original(self, *args, **kwargs)
                finally:
                    steps.switch(before)
                if moved.is_cuda:
                    steps.seen.add(TRANSFER)
                return moved

            return move

        for name in ("to", "cuda"):
            self._patches.wrap(self._torch.Tensor, name, moving)

    # ------------------------------------------------------------ forward

    def _watch_modules(self) -> None:
        steps, thread = self.steps, self._thread
        compiling, gradients = self._torch.compiler.is_compiling, self._torch.is_grad_enabled

        def calling(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
                if compiling() or steps.inside or steps.phase == LOAD or get_ident() != thread:
                    return original(self, *args, **kwargs)
                gradient = gradients()
                steps.forward_begins(gradient)
                try:
                    output = original(self, *args, **kwargs)
                except BaseException:
                    steps.inside = False
                    raise
                steps.forward_ends(self, gradient)
                return output

            return call

        self._patches.wrap(self._torch.nn.Module, "__call__", calling)

    # ------------------------------------------------------------ backward and update

    def _watch_backward(self) -> None:
        steps, thread, torch = self.steps, self._thread, self._torch

        def backward_of(original: Callable[..., Any], losses: bool) -> Callable[..., Any]:
            def backward(*args: Any, **kwargs: Any) -> Any:
                if get_ident() != thread:
                    return original(*args, **kwargs)
                steps.backward_begins(self._loss(args[0] if args else kwargs.get("tensors")) if losses else None)
                result = original(*args, **kwargs)
                steps.backward_ends()
                return result

            return backward

        self._patches.wrap(torch.autograd, "backward", lambda original: backward_of(original, True))
        self._patches.wrap(torch.autograd, "grad", lambda original: backward_of(original, False))

        def scaling(original: Callable[..., Any]) -> Callable[..., Any]:
            def scale(scaler: Any, outputs: Any) -> Any:
                scaled = original(scaler, outputs)
                self._unscaled = scaled, outputs
                return scaled

            return scale

        self._patches.wrap(torch.amp.GradScaler, "scale", scaling)

    def _loss(self, tensors: Any) -> Any:
        """What backward was called on, if it is one number."""
        if not isinstance(tensors, self._torch.Tensor) or tensors.numel() != 1:
            return None
        scaled, self._unscaled = self._unscaled, None
        loss = scaled[1] if scaled is not None and scaled[0] is tensors else tensors
        return loss.detach().reshape(())

    def _watch_updates(self) -> None:
        """Around what torch puts around every optimizer's step: its own hooks lie inside, a third of a small update late."""
        steps, thread, compiling = self.steps, self._thread, self._torch.compiler.is_compiling

        def measured(inner: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(inner)
            def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                if self._patches.undone or compiling() or get_ident() != thread:
                    return inner(optimizer, *args, **kwargs)
                steps.update_begins(optimizer)
                result = inner(optimizer, *args, **kwargs)
                steps.update_ends(optimizer)
                return result

            return update

        base = self._torch.optim.Optimizer
        self._patches.wrap(
            base, "profile_hook_step", lambda original: lambda step: measured(original(step)), static=True
        )
        for kind in kinds_of(base):  # classes of which somebody has made an optimizer already
            if getattr(vars(kind).get("step"), "hooked", False):
                self._patches.wrap(kind, "step", measured)


def kinds_of(base: Any) -> Iterator[Any]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)


def count_samples(batch: Any, depth: int = 0) -> int | None:
    """The first dimension of the first tensor of a batch; None where there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth < DEEPEST:
        inner = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
        for part in inner:
            count = count_samples(part, depth + 1)
            if count is not None:
                return count
    return None
