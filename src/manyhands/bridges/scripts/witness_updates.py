"""The updates of a script: losses, gradients as each rank computed them and as the optimizer used them, rates, weights.

A hook on every parameter that an optimizer holds sees the gradient of each backward pass before it is added up and before
DistributedDataParallel averages it: the rank's own. What `optimizer.step()` finds is what was made of it.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from .hooks import kinds_of
from .loss_share import share
from .witness_data import rows_of, tensors_in

COORDINATES = 1 << 16  # of all parameters together; of each at least SOME
SOME = 64
CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


class Updates:
    """One entry per update; the tensors of update 3 are `used3`, `own3`, `weights3` in `arrays`."""

    def __init__(self, witness: Any):
        import torch

        self._witness, self._torch = witness, torch
        self.made: list[dict[str, Any]] = []
        self.arrays: dict[str, Any] = {}
        self.group = 1  # batches per update
        self.parameters: dict[int, Any] = {}
        self.names: dict[int, str] = {}
        self.buffers: dict[str, Any] = {}
        self.seen: dict[str, Any] = {
            "wrapped": False,
            "bypassed": False,
            "batchnorm": False,
            "dropout": False,
        }
        self.optimizers: list[Any] = []
        self.tail: list[list[float]] = []  # rates of the updates that were hurried
        self._own: dict[int, Any] = {}
        self._picks: dict[int, Any] = {}
        self._inside = False
        self._wrapped: list[Any] = []
        self._scale = 1.0
        self._fresh()
        self._watch()

    def _fresh(self) -> None:
        self.passes: list[dict[str, Any]] = []  # backward passes since the last update
        self._rows: list[str] = []  # of the batch at hand
        self._clips: list[dict[str, Any]] = []
        self._fetches = dict(self._witness.data.fetches)

    # ------------------------------------------------------------ what is watched

    def _watch(self) -> None:
        torch, wrap = self._torch, self._witness.patches.wrap
        base = torch.optim.Optimizer
        wrap(base, "add_param_group", self._grouping)
        wrap(base, "profile_hook_step", lambda original: lambda step: self._updating(original(step)), static=True)
        for kind in kinds_of(base):
            if getattr(vars(kind).get("step"), "hooked", False):
                wrap(kind, "step", self._updating)
        wrap(torch.nn.Module, "__call__", self._calling)
        wrap(torch.autograd, "backward", self._passing_back)
        wrap(torch.nn.parallel.DistributedDataParallel, "__init__", self._wrapping)
        wrap(torch.amp.GradScaler, "scale", self._scaling)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in CLIPS:
                wrap(owner, name, functools.partial(self._clipping, name))
        wrap(torch.nn.functional, "batch_norm", self._normalising)
        for name in DROPOUTS:
            wrap(torch.nn.functional, name, self._dropping)

    def _grouping(self, original: Any) -> Any:
        def group(optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if not self.parameters:
                self._witness.changes.model_made()
            for parameter in optimizer.param_groups[-1]["params"]:
                if id(parameter) not in self.parameters and parameter.requires_grad and parameter.is_leaf:
                    self.parameters[id(parameter)] = parameter
                    parameter.register_hook(functools.partial(self._heard, id(parameter)))

        return group

    def _heard(self, key: int, gradient: Any) -> Any:
        """A rank's own gradient of one backward pass."""
        gradient = self._witness.changes.own_gradient(gradient)
        before = self.parameters[key].grad
        mine = self._sample(gradient, key) / self._scale
        if before is not None and key in self._own and bool(self._sample(before, key).any()):
            mine = mine + self._own[key]
        self._own[key] = mine
        return gradient

    def _calling(self, original: Any) -> Any:
        torch = self._torch

        def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._inside or torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            parameters = {id(one) for one in module.parameters()}
            trains = torch.is_grad_enabled() and bool(parameters & self.parameters.keys())
            if trains:
                self._begin(module, args, kwargs)
            self._inside = True
            try:
                return original(module, *args, **kwargs)
            finally:
                self._inside = False
                if not trains and parameters:  # an evaluation: what it draws is no part of training
                    self._witness.data.random.mark()

        return call

    def _begin(self, module: Any, args: Any, kwargs: Any) -> None:
        """A module is called for a gradient."""
        new = not all(id(one) in self.names for one in module.parameters())
        for name, parameter in module.named_parameters():
            self.names.setdefault(id(parameter), _plain(name))
        for name, buffer in module.named_buffers():
            self.buffers[_plain(name)] = buffer
        if new:
            self._witness.changes.first_call(module)
        if self._wrapped:
            self.seen["bypassed"] |= any(module is not one and module is one.module for one in self._wrapped)
        if not self._rows:
            self._witness.data.random.inside()
            inputs = [one for one in tensors_in([args, kwargs]) if not one.requires_grad]
            self._rows = rows_of(inputs)

    def _passing_back(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            data = self._witness.data
            loss = tensors if isinstance(tensors, self._torch.Tensor) else None
            entry: dict[str, Any] = {"rows": self._rows, "random": data.random.drawn()}
            if loss is not None and loss.numel() == 1:
                entry |= {"loss": float(loss.detach()) / self._scale, **share(loss, len(self._rows))}
            data.trains()
            self._witness.changes.before_backward(entry)
            original(tensors, *args, **kwargs)
            self.passes.append(entry)
            self._rows = []
            self._witness.changes.after_backward()

        return backward

    def _clipping(self, name: str, original: Any) -> Any:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, self._torch.Tensor) else list(parameters)
            if not self._clips:
                self._witness.changes.before_use(self)
            known = [one for one in self._held() if one.grad is not None]
            before = self._together([one.grad for one in known], known)
            result = original(parameters, *args, **kwargs)
            after = self._together([one.grad for one in known], known)
            norm = float(result) if isinstance(result, self._torch.Tensor) else None
            active = bool((before != after).any())
            self._clips.append({"name": name, "norm": norm, "active": active})
            self.arrays[f"clipped{len(self.made)}"] = before
            return result

        return clip

    def _wrapping(self, original: Any) -> Any:
        def wrap(module: Any, /, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self._wrapped.append(module)
            self.seen["wrapped"] = True

        return wrap

    def _scaling(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            self._scale = float(scaler.get_scale()) if scaler.is_enabled() else 1.0
            return original(scaler, outputs)

        return scale

    def _normalising(self, original: Any) -> Any:
        def normalise(input: Any, running_mean: Any, running_var: Any, *args: Any, **kwargs: Any) -> Any:
            training = args[2] if len(args) > 2 else kwargs.get("training", False)
            self.seen["batchnorm"] |= bool(training) and self._torch.is_grad_enabled()
            changed = self._witness.changes.normalising(original, input, running_mean, running_var, args, kwargs)
            return original(input, running_mean, running_var, *args, **kwargs) if changed is None else changed

        return normalise

    def _dropping(self, original: Any) -> Any:
        def drop(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if training and p > 0:
                self.seen["dropout"] = True
                if self._witness.changes.wants("quiet"):
                    return input
            return original(input, p, training, inplace)

        return drop

    # ------------------------------------------------------------ updates

    def _updating(self, inner: Any) -> Any:
        @functools.wraps(inner)
        def update(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._witness.process != os.getpid():
                return inner(optimizer, *args, **kwargs)
            if self._witness.hurrying:
                self.tail.append([float(one["lr"]) for one in optimizer.param_groups])
                result = inner(optimizer, *args, **kwargs)
            else:
                self._before(optimizer)
                result = inner(optimizer, *args, **kwargs)
                self._after(optimizer)
            self._fresh()
            self._witness.data.random.mark()
            self._witness.update_made(len(self.made))
            return result

        return update

    def _before(self, optimizer: Any) -> None:
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
        if not self._clips:
            self._witness.changes.before_use(self)
        self._witness.changes.rates(len(self.made), optimizer)
        number, held = len(self.made), self._held(optimizer)
        if not number:
            self.arrays["start"] = self._together(self._held(), self._held())
        self.arrays[f"used{number}"] = self._together([one.grad for one in held], held)
        self.arrays[f"own{number}"] = self._together([self._own.get(id(one)) for one in held], held, sampled=True)

    def _after(self, optimizer: Any) -> None:
        number, held = len(self.made), self._held(optimizer)
        self.arrays[f"weights{number}"] = self._together(held, held)
        if self.buffers:
            moving = [one.detach().double().flatten()[:SOME] for one in self.buffers.values() if one.numel()]
            self.arrays[f"buffers{number}"] = self._torch.cat(moving).cpu().numpy() if moving else None
        data = self._witness.data
        fetched = sum(data.fetches[one] - self._fetches.get(one, 0) for one in data.trained)
        self.group = max(self.group, fetched)
        self.made.append(
            {
                "optimizer": self.optimizers.index(optimizer),
                "rates": [float(one["lr"]) for one in optimizer.param_groups],
                "passes": self.passes,
                "clips": self._clips,
                "fetched": fetched,
                "synced": all(one.require_backward_grad_sync for one in self._wrapped),
            }
        )

    def facts(self) -> dict[str, Any]:
        sizes = [len(self._pick(one)) for one in self._held()]
        return {
            **self.seen,
            "updates": self.made,
            "tail": self.tail,
            "group_size": self.group,
            "optimizers": len(self.optimizers),
            "names": [self.names.get(id(one), f"parameter {at}") for at, one in enumerate(self._held())],
            "sizes": sizes,
        }

    # ------------------------------------------------------------ tensors as a few coordinates

    def _held(self, optimizer: Any = None) -> list[Any]:
        if optimizer is None or len(self.optimizers) < 2:
            return list(self.parameters.values())
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        return [one for key, one in self.parameters.items() if key in own]

    def _pick(self, parameter: Any) -> Any:
        key = id(parameter)
        if key not in self._picks:
            room = max(SOME, COORDINATES // max(1, len(self.parameters)))
            count = parameter.numel()
            stride = max(1, -(-count // room))
            self._picks[key] = self._torch.arange(0, count, stride)
        return self._picks[key]

    def _sample(self, tensor: Any, key: int) -> Any:
        tensor = tensor.detach()
        tensor = tensor.to_dense() if tensor.layout != self._torch.strided else tensor
        return tensor.flatten()[self._pick(self.parameters[key]).to(tensor.device)].double().cpu()

    def _together(self, tensors: list[Any], parameters: list[Any], sampled: bool = False) -> Any:
        parts = []
        for tensor, parameter in zip(tensors, parameters, strict=True):
            empty = self._torch.zeros(len(self._pick(parameter)), dtype=self._torch.float64)
            parts.append(empty if tensor is None else tensor if sampled else self._sample(tensor, id(parameter)))
        return self._torch.cat(parts).numpy() if parts else self._torch.zeros(0).numpy()


def _plain(name: str) -> str:
    return name.removeprefix("module.").removeprefix("_orig_mod.").removeprefix("module.")
