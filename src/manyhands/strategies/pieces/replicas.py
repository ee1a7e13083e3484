"""Replicas of a model in one process, a thread each: the steps of data parallelism as differentiable pieces.

                    forward                                       backward
    replicate       weights to every replica                      gradients summed onto the first device
    scatter         a stretch of the batch to every replica       (of inputs that ask for a gradient)
    in threads      every replica on its stretch                  the same, each in its own thread
    gather          outputs to the first device                   gradients of outputs to their replicas

`DataParallelModel` is the first three, `gather` the fourth, `DataParallelCriterion` a loss that needs no
gathering. They work in any loop, with any number of replicas on any devices (`replica_transfers.py`,
`replica_threads.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...data import nest, splitting
from ...data.order import Shard
from ...data.splitting import Rule
from ...errors import BadInput
from ...record.clock import Clock
from ...world.devices import default_ranks
from ...world.launch.by_value import by_value_copy
from .replica_threads import Threads, saved_bytes
from .replica_transfers import Gather, Replicate, scatter
from .units import keep_nan_in, units_of, weighted

Device = torch.device | str


class Outputs(tuple[Any, ...]):
    """What the replicas gave, each where it was computed, and how many samples stand behind each."""

    counts: tuple[int, ...]


class DataParallelModel(nn.Module):
    """Runs a model on stretches of a batch, one replica a device, and leaves the outputs where they are.

    `devices` may repeat one (`["cpu"] * 2`); without it every GPU, or replicas on the model's own device, as many
    as it has cores. `shares` gives replicas unequal stretches. Gradients arrive on `module`'s own parameters.
    """

    def __init__(
        self,
        module: nn.Module,
        devices: Sequence[Device] | None = None,
        shares: Sequence[float] | None = None,
        clock: Clock | None = None,
        rule: Rule | None = None,  # what counts samples in a model's one input, where that is known
        output_rule: Rule | None = None,
        call: Callable[[nn.Module, Any], Any] | None = None,  # how the module takes its one input, where not as it is
    ):
        super().__init__()
        self.module = module
        self.replicas = Replicas(module, _devices(module, devices), clock, call)
        self.shares = None if shares is None else normalised(shares, len(self.replicas.devices))
        self._rule = None if rule is None else ((rule,), splitting.SHARED)
        self._output_rule = output_rule

    def forward(self, *inputs: Any, **named: Any) -> Outputs:
        given = inputs, named
        rule = self._rule or (splitting.inferred(inputs, True), splitting.inferred(named, True))
        bounds = self.bounds(splitting.count(given, rule))
        parts = self.replicas.scatter(given, rule, bounds)
        outputs = Outputs(self.replicas.run([(args, kwargs) for args, kwargs in parts]))
        outputs.counts = tuple(stop - start for start, stop in bounds)
        return outputs

    def bounds(self, total: int) -> list[tuple[int, int]]:
        """Where each replica's stretch of `total` samples begins and ends; replicas without a sample are left out."""
        number = len(self.replicas.devices)
        cuts = [Shard(index, number, shares=self.shares).bounds(total) for index in range(number)]
        return [(start, stop) for start, stop in cuts if stop > start]

    def gather(self, outputs: Outputs) -> Any:
        """The outputs as one nest on the first device, as `module` would have given them for the whole batch."""
        return gather(outputs, self.replicas.devices[0], self.replicas.clock, self._output_rule)


class DataParallelCriterion(nn.Module):
    """The loss of every replica's output, each where the output is; only the losses travel.

    Targets are split as the batch was. `criterion` gives the mean over its samples; so does the result, over all.
    """

    def __init__(
        self,
        criterion: Callable[..., Tensor],
        devices: Sequence[Device] | None = None,
        clock: Clock | None = None,
        rule: Rule | None = None,  # what counts samples in the targets, where that is known
        weight: Callable[[Any], Any] | None = None,  # target -> what its loss is a mean over, where not samples
    ):
        super().__init__()
        self.criterion, self._clock, self._rule, self._weight = criterion, clock, rule, weight
        places = [torch.device(device) for device in devices or ()]
        self.replicas = Replicas(criterion, places, clock) if places else None

    def forward(self, outputs: Sequence[Any], target: Any) -> Tensor:
        counts = getattr(outputs, "counts", None) or tuple(nest.count(output) for output in outputs)
        rule = self._rule or splitting.inferred(target)
        total = splitting.count(target, rule) or sum(counts)  # a target of no tensors (None) counts nothing
        if sum(counts) != total:
            raise BadInput(
                f"the outputs hold {sum(counts)} samples in {len(counts)} parts, the targets {total}; "
                "give the targets of the same batch"
            )
        if self.replicas is None:  # outputs say where the replicas are, where nobody else does
            self.replicas = Replicas(self.criterion, [_place(output) for output in outputs], self._clock)
        ends = [sum(counts[: index + 1]) for index in range(len(counts))]
        bounds = [(end - count, end) for end, count in zip(ends, counts, strict=True)]
        targets = self.replicas.scatter(target, rule, bounds)
        losses = self.replicas.run([((output, part), {}) for output, part in zip(outputs, targets, strict=True)])
        means = gather([loss.reshape(1) for loss in losses], self.replicas.devices[0], self.replicas.clock)
        if self._weight is None:
            return (means * torch.tensor(counts, dtype=means.dtype, device=means.device)).sum() / total
        units = [units_of(self._weight, part, loss.device) for part, loss in zip(targets, losses, strict=True)]
        for output, loss, number in zip(outputs, losses, units, strict=True):
            keep_nan_in(output, loss, number)
        return weighted(means, torch.stack([number.to(means.device) for number in units]))


def _as_it_is(module: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except RuntimeError:  # weights computed from parameters and kept as attributes: the older weight_norm, prune
        return by_value_copy(module)  # type: ignore[no-any-return]


class Replicas:
    """Copies of a module (or a plain function), one a device, and the threads that run them."""

    def __init__(
        self,
        module: Callable[..., Any],
        devices: Sequence[torch.device],
        clock: Clock | None = None,
        call: Callable[..., Any] | None = None,  # call(copy, input), where it is not copy(input)
    ):
        self.module, self.devices, self._call = module, list(devices), call or _as_it_is
        self.clock = clock or Clock()
        self.threads = Threads(self.devices)
        self.copies = [_copied(module) if isinstance(module, nn.Module) else module for _ in self.devices]
        self.saved_bytes = [0] * len(self.devices)  # activations each replica kept for backward, in its first run
        self._slots = _slots(module, self.copies) if isinstance(module, nn.Module) else []

    def scatter(self, value: Any, rule: Rule, bounds: Sequence[tuple[int, int]]) -> list[Any]:
        """A stretch of a batch for each replica; only what leaves the first is a copy."""
        with self.clock.during("communication"):
            parts = splitting.split(value, rule, bounds)
            return scatter(parts, self.devices[: len(bounds)], self.clock)

    def run(self, inputs: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """Every replica on its input, in its own thread; differentiable in the weights and the inputs."""
        number = len(inputs)
        state = self._state()
        weights = Replicate.apply(self.clock, self.devices[:number], *state) if state else ()
        held = [list(weights[index * len(state) : (index + 1) * len(state)]) for index in range(number)]
        self._follow_modes(number)
        weigh = torch.is_grad_enabled() and not any(self.saved_bytes)

        def call(index: int, own: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._load(index, own)
            if not weigh:
                return self._call(self.copies[index], *args, **kwargs)
            with saved_bytes(own) as found:
                output = self._call(self.copies[index], *args, **kwargs)
            self.saved_bytes[index] = sum(found.values())
            return output

        return self.threads.run(call, [(own, *pair) for own, pair in zip(held, inputs, strict=True)])

    def _state(self) -> list[Tensor]:
        """The module's parameters, then its buffers, each once however often it is used."""
        if not isinstance(self.module, nn.Module):
            return []
        return [*self.module.parameters(), *self.module.buffers()]

    def _load(self, index: int, state: list[Tensor]) -> None:
        for tensor, places in zip(state, self._slots, strict=True):
            for module, name, is_parameter in places[index]:
                if not is_parameter:
                    module._buffers[name] = tensor
                elif type(module).__setattr__ is nn.Module.__setattr__:
                    module._parameters[name] = tensor  # type: ignore[assignment]
                else:  # recurrent layers keep a list of their weights beside the names
                    setattr(module, name, tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, False))

    def _follow_modes(self, number: int) -> None:
        """Replicas train, or not, as the module does."""
        if isinstance(self.module, nn.Module):
            for copied in self.copies[:number]:
                for source, target in zip(self.module.modules(), copied.modules(), strict=True):  # type: ignore[attr-defined]
                    target.training = source.training


def gather(outputs: Sequence[Any], device: Device, clock: Clock | None = None, rule: Rule | None = None) -> Any:
    """Outputs of replicas as one nest on `device`, joined sample by sample: by rows, where no rule says otherwise."""
    if len(outputs) == 1 and (first := nest.first(outputs[0])) is not None and first.device == torch.device(device):
        return outputs[0]
    counts = getattr(outputs, "counts", None)
    if rule is None:
        rule = _rows(outputs, counts)
    for output, number in zip(outputs, counts or (), strict=counts is not None):
        if (found := splitting.count(output, rule)) not in (0, number):
            raise BadInput(f"the output of {number} samples holds {found}; to be gathered it needs one per sample")
    place = torch.device(device)
    return splitting.join(
        outputs,
        rule,
        rows=lambda parts: Gather.apply(clock or Clock(), place, *parts),
        entry=lambda item: nest.each(item, lambda tensor: tensor.to(place)),
    )


def _rows(outputs: Sequence[Any], counts: tuple[int, ...] | None) -> Rule:
    """The rule for outputs whose every tensor has a row per sample."""
    for column in zip(*(nest.leaves(output) for output in outputs), strict=True):
        lengths = tuple(tensor.shape[0] if tensor.dim() else None for tensor in column)
        if None in lengths or (counts is not None and lengths != counts):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in column)
            raise BadInput(
                f"outputs of {counts or len(outputs)} samples have shapes {shapes}: to be gathered, their first "
                "dimension must count samples; use balanced_data_parallel, which leaves them where they are"
            )
    return splitting.inferred(outputs[0])


# ---------------------------------------------------------------- small things


def normalised(shares: Sequence[float], number: int) -> tuple[float, ...]:
    """Shares that sum to one."""
    text = "+".join(f"{share:g}" for share in shares)
    if len(shares) != number:
        raise BadInput(f"shares={text} has {len(shares)} numbers but there are {number} replicas; give one number each")
    if not all(0 < share < float("inf") for share in shares):
        raise BadInput(f"shares must be above 0 (found {text})")
    return tuple(share / sum(shares) for share in shares)


def _devices(module: nn.Module, devices: Sequence[Device] | None) -> list[torch.device]:
    home = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    if devices is None:
        others = (
            [torch.device("cuda", index) for index in range(torch.cuda.device_count())] if home.type == "cuda" else []
        )
        return [home, *(device for device in others if device != home)] if len(others) > 1 else [home] * default_ranks()
    found = [torch.device(device) for device in devices]
    found = [torch.device("cuda", 0) if device == torch.device("cuda") else device for device in found]
    if not found or found[0] != home:
        raise BadInput(
            f"the model is on {home}, so the first replica must be there (found devices {[str(d) for d in found]})"
        )
    return found


def _place(output: Any) -> torch.device:
    tensor = nest.first(output)
    return tensor.device if tensor is not None else torch.device("cpu")


Place = tuple[nn.Module, str, bool]  # module, name, whether it is a parameter


def _slots(module: nn.Module, copies: Sequence[Any]) -> list[list[list[Place]]]:
    """For every parameter and buffer of the module: where it belongs in each copy (tied ones in several places)."""
    found: dict[int, list[list[Place]]] = {
        id(tensor): [[] for _ in copies] for tensor in (*module.parameters(), *module.buffers())
    }
    for number, copied in enumerate(copies):
        for source, target in zip(module.modules(), copied.modules(), strict=True):
            own: dict[str, Any] = {"recurse": False, "remove_duplicate": False}
            for table, is_parameter in ((source.named_parameters(**own), True), (source.named_buffers(**own), False)):
                for name, tensor in table:
                    found[id(tensor)][number].append((target, name, is_parameter))
    return list(found.values())
