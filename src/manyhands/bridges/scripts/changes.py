"""What can be changed in a script from outside: one thing per run, while everything else stays as it is.

broadcast    all ranks begin with the weights of rank 0
reduce       gradients are averaged over ranks after every backward pass, before anybody uses them
reseed       every rank draws numbers of its own
set_epoch    samplers are told of each new pass
shard        each rank reads its own part of the data
union        each rank reads the batches of all ranks together: what one process would compute
quiet        without dropout
batchnorm    BatchNorm takes its statistics over all ranks
weigh        each rank counts with its number of samples (or tokens), and a sum counts as a sum over ranks
rates        the learning rates of every update, given
divide       gradients divided by what the accumulated losses were not
perturb      the weights of the start differ by one rounding of this size
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Changes:
    """Those that were asked for; each does nothing otherwise."""

    def __init__(self, witness: Any, wanted: dict[str, Any]):
        self._witness, self._wanted = witness, wanted
        self._factor = 1.0

    def wants(self, name: str) -> bool:
        return name in self._wanted

    # ------------------------------------------------------------ data

    def making_loader(self, number: int, dataset: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if number not in self._wanted.get("shard", ()) or not hasattr(dataset, "__getitem__") or len(args) > 1:
            return
        from torch.utils.data import DistributedSampler

        if kwargs.get("batch_sampler") is None:
            mixed = bool(kwargs.pop("shuffle", False)) or kwargs.get("sampler") is not None
            kwargs["sampler"] = DistributedSampler(dataset, self._witness.ranks, self._witness.rank, shuffle=mixed)

    def beginning_pass(self, number: int, loader: Any, passes: int) -> None:
        if number in self._wanted.get("set_epoch", ()):
            batches: Any = getattr(loader, "batch_sampler", None)
            samplers: tuple[Any, ...] = (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
            for sampler in samplers:
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(passes)

    def fetching(self, number: int, fetch: Callable[[], Any]) -> Any:
        if number in self._wanted.get("take_turns", ()):
            batches = [fetch() for _ in range(self._witness.ranks)]
            return batches[self._witness.rank]
        if number not in self._wanted.get("union", ()):
            return fetch()
        batch, ended = None, False
        try:
            batch = fetch()
        except StopIteration:
            ended = True
        found: list[Any] = [None] * self._witness.ranks
        _group().all_gather_object(found, (ended, batch))
        if ended:
            raise StopIteration
        return _joined([one for over, one in found if not over])

    # ------------------------------------------------------------ weights and randomness

    def first_call(self, module: Any) -> None:
        """The model is about to be trained for the first time."""
        import torch

        with torch.no_grad():
            if self.wants("broadcast"):
                for tensor in [*module.parameters(), *module.buffers()]:
                    _group().broadcast(tensor.data, 0)
            if self.wants("perturb"):
                for parameter in module.parameters():
                    if parameter.is_floating_point():
                        parameter.mul_(1 + self._wanted["perturb"])

    def model_made(self) -> None:
        """There is an optimizer, so the model has its weights."""
        if not self.wants("reseed"):
            return
        import random

        import numpy
        import torch

        own = (torch.initial_seed() + 7919 * (self._witness.rank + 1)) % (1 << 32)
        torch.manual_seed(own)
        numpy.random.seed(own)
        random.seed(own)

    def normalising(self, original: Any, input: Any, mean: Any, variance: Any, args: Any, kwargs: Any) -> Any:
        """BatchNorm over the batches of all ranks; None: as it was."""
        import torch

        names = ("weight", "bias", "training", "momentum", "eps")
        given: dict[str, Any] = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}
        given |= dict(zip(names, args, strict=False)) | kwargs
        if not self.wants("batchnorm") or not given["training"] or not torch.is_grad_enabled():
            return None
        from torch.distributed.nn.functional import all_reduce

        _group()
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        count = torch.full((1,), input.numel() / input.shape[1], dtype=torch.float64)
        sums = torch.cat([input.double().sum(axes), (input.double() ** 2).sum(axes), count])
        sums = all_reduce(sums)
        total, channels = sums[-1], input.shape[1]
        middle = sums[:channels] / total
        spread = sums[channels : 2 * channels] / total - middle**2
        if mean is not None:
            with torch.no_grad():
                mean.mul_(1 - given["momentum"]).add_(middle * given["momentum"])
                variance.mul_(1 - given["momentum"]).add_(spread * total / (total - 1) * given["momentum"])
        out = (input.double() - middle.view(shape)) / (spread + given["eps"]).sqrt().view(shape)
        out = out.to(input.dtype)
        if given["weight"] is not None:
            out = out * given["weight"].view(shape) + given["bias"].view(shape)
        return out

    # ------------------------------------------------------------ losses and gradients

    def before_backward(self, entry: dict[str, Any]) -> None:
        if not self.wants("weigh"):
            return
        if entry.get("kind") == "sum":
            self._factor = float(self._witness.ranks)
            return
        counts: list[Any] = [None] * self._witness.ranks
        _group().all_gather_object(counts, entry.get("count", 1.0))
        self._factor = counts[self._witness.rank] * self._witness.ranks / sum(counts)

    def own_gradient(self, gradient: Any) -> Any:
        return gradient * self._factor if self._factor != 1.0 else gradient

    def after_backward(self) -> None:
        if not self.wants("reduce"):
            return
        import torch

        parameters = list(self._witness.updates.parameters.values())
        with torch.no_grad():
            parts = [(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in parameters]
            flat = torch.cat(parts)
            _group().all_reduce(flat)
            flat /= self._witness.ranks
            for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
                if parameter.grad is not None:
                    parameter.grad.copy_(part.view_as(parameter.grad))

    def before_use(self, updates: Any) -> None:
        """Gradients are about to be clipped, or used."""
        weight = sum(one.get("factor", 0.0) for one in updates.passes)
        if self.wants("divide") and weight:
            for parameter in updates.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.div_(weight)

    def rates(self, update: int, optimizer: Any) -> None:
        given = self._wanted.get("rates", ())
        if update < len(given):
            for group, rate in zip(optimizer.param_groups, given[update], strict=False):
                group["lr"] = rate


def _group() -> Any:
    """torch.distributed, with a process group: the script's, or one of our own where it has none."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist


def _joined(batches: list[Any]) -> Any:
    """Batches of one form as one batch."""
    import torch

    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(batches) if first.dim() else first
    if hasattr(first, "keys"):
        return {name: _joined([one[name] for one in batches]) for name in first}
    if isinstance(first, tuple | list):
        if first and isinstance(first[0], str | int | float):
            return [one for part in batches for one in part]
        parts = [_joined([one[at] for one in batches]) for at in range(len(first))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first
