"""Pieces that several strategies share: the forward pass with its loss, the update, the ordinary worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...data.batches import Batch
from ...world.rank import Rank
from ..contract import Loss
from ..job import Job, trained_parameters
from .fused import direct_sgd, fuse


def place_model(job: Job, rank: Rank) -> nn.Module:
    """The rank's own model on its device, in training mode; one that placed itself on devices is left there."""
    model = job.model
    places = {parameter.device for parameter in model.parameters()}
    if len(places) <= 1 and places <= {torch.device("cpu")}:
        model = model.to(rank.device)
    if job.settings.compile:
        model.compile()
    return model.train()


def spread_over_devices(model: nn.Module) -> bool:
    """Whether the model put its own parts on several devices."""
    return len({parameter.device for parameter in model.parameters()}) > 1


def autocast(job: Job, device: torch.device) -> AbstractContextManager[Any]:
    """The arithmetic the settings ask for."""
    if job.settings.precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


class Updater:
    """The optimizer with its schedule and clipping: one call is one write to the weights."""

    def __init__(
        self,
        job: Job,
        parameters: Iterable[tuple[str, nn.Parameter]],
        norm: Callable[[list[Tensor]], Tensor] | None = None,
        optimizer: Optimizer | None = None,  # already made, where a rank holds only some parameters
    ):
        self.named = list(parameters)
        self.optimizer: Optimizer = optimizer or job.task.optimizer(self.named)
        self.schedule = job.task.schedule(self.optimizer, job.total_updates) if job.task.schedule else None
        self.clip = job.settings.clip
        self._norm = norm  # of all gradients, where a rank holds only some of them
        self._fusing = job.settings.fuse
        self.updates = 0
        self.write: Callable[[], Any] = self.optimizer.step  # writes the weights

    def update(self, advance: bool = True) -> None:
        """Clip, write the weights, forget the gradients, move the schedule on (unless more updates make up a step)."""
        self.apply()
        self.advance(schedule=advance)

    def apply(self) -> None:
        """Clip, write the weights, forget the gradients."""
        if self._fusing:
            self._fusing = False
            fuse(self.optimizer)
            if all(group.get("fused") for group in self.optimizer.param_groups):
                self.write = direct_sgd(self.optimizer) or self.write
        if self.clip is not None:
            self._clip(self.clip)
        self.write()
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def advance(self, schedule: bool = True) -> None:
        """Count an update and move the schedule on."""
        if schedule:
            self.skip()
        self.updates += 1

    def skip(self) -> None:
        """Move the schedule on, over a step to which this rank had nothing to add."""
        if self.schedule is not None:
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # a first step without an update is no mistake
            self.schedule.step()

    def _clip(self, limit: float) -> None:
        gradients = [parameter.grad for _, parameter in self.named if parameter.grad is not None]
        if self._norm is None:
            torch.nn.utils.clip_grad_norm_([parameter for _, parameter in self.named], limit)
            return
        factor = (limit / (self._norm(gradients) + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device))

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def state(self) -> dict[str, Any]:
        return {
            "optimizer": named_state(self.optimizer, self.named),
            "schedule": self.schedule.state_dict() if self.schedule else None,
            "updates": self.updates,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        load_named_state(self.optimizer, self.named, state["optimizer"])
        if self.schedule is not None and state["schedule"] is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.updates = int(state["updates"])


NOT_STATE = ("params", "param_names", "fused", "foreach")  # which parameters, and how they are updated, is each rank's


def named_state(optimizer: Optimizer, named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Any]:
    """The optimizer's state keyed by parameter name, and the options of its groups with the names in each."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in named}
    return {
        "state": {names[parameter]: dict(state) for parameter, state in optimizer.state.items() if parameter in names},
        "groups": [
            {
                **{key: value for key, value in group.items() if key not in NOT_STATE},
                "names": [names[parameter] for parameter in group["params"]],
            }
            for group in optimizer.param_groups
        ],
    }


def load_named_state(optimizer: Optimizer, named: Iterable[tuple[str, nn.Parameter]], state: Mapping[str, Any]) -> None:
    """Put state back by name; parameters held elsewhere are passed over."""
    held = dict(named)
    owner = {name: group for group in state["groups"] for name in group["names"]}
    alike = len(optimizer.param_groups) == len(state["groups"])
    for group, stored in zip(optimizer.param_groups, state["groups"] if alike else optimizer.param_groups, strict=True):
        if not group["params"]:  # of this group another rank holds everything
            group.update({key: value for key, value in stored.items() if key in group and key not in NOT_STATE})
        names = [name for name, parameter in held.items() if any(parameter is p for p in group["params"])]
        for name in names:
            if name in owner:
                group.update(
                    {key: value for key, value in owner[name].items() if key in group and key not in NOT_STATE}
                )
                break
    for name, values in state["state"].items():
        if name in held:
            parameter = held[name]
            optimizer.state[parameter] = {key: _at_home(value, parameter) for key, value in values.items()}


def _at_home(value: Any, parameter: nn.Parameter) -> Any:
    """State tensors go to their parameter's device, step counters stay on the CPU where torch keeps them.

    Fused optimizers go through memory number by number, so what is of a parameter's shape takes its strides too.
    """
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0:
        return value.clone()
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
    return value.to(device=parameter.device, copy=True)


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, as copies on the CPU."""
    return {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }


class WithLoss(nn.Module):
    """The model and its loss as one module, for wrappers: what comes out is a number, whatever the model returns.

    torch's wrappers look for tensors in what a module returns, and pass over what they cannot open.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Tensor]):
        super().__init__()
        self.model = model
        self._loss = (loss,)  # in a tuple: a loss that is a module is not part of the model

    def forward(self, input: Any, target: Any) -> Tensor:
        return self._loss[0](self.model(input), target)


class OrdinaryWorker:
    """The ordinary step, for strategies that only change where the weights live.

    `model` is what is called (a wrapper may communicate inside; it then takes the target too and gives the loss), `plain`
    is the module with the user's names. `hold` keeps a wrapper from communicating while gradients are only accumulated.
    """

    def __init__(
        self,
        job: Job,
        rank: Rank,
        model: nn.Module,
        plain: nn.Module,
        hold: Callable[[], AbstractContextManager[Any]] = nullcontext,
        after_backward: Callable[[], None] | None = None,
        norm: Callable[[list[Tensor]], Tensor] | None = None,
        trained: Iterable[tuple[str, nn.Parameter]] | None = None,  # what is updated, where that is not the model's own
    ):
        self.job, self.rank, self.model, self.plain = job, rank, model, plain
        self.updater = Updater(job, trained_parameters(plain) if trained is None else trained, norm)
        self._hold, self.after_backward = hold, after_backward
        self._clock = rank.clock
        self._loss = job.task.loss

    def step(self, batch: Batch | None) -> Loss | None:
        assert batch is not None
        if batch.update:
            loss = self.add_gradient(batch)
        else:
            with self._hold():
                loss = self.add_gradient(batch)
        if batch.update:
            self._clock.enter("update")
            self.updater.update()
        return Loss(loss.detach(), batch.count)

    def add_gradient(self, batch: Batch) -> Tensor:
        """Forward and backward of a batch; gradients are added to those that are there."""
        self._clock.enter("forward")
        with autocast(self.job, self.rank.device):
            loss = self.loss_of(batch)
        self._clock.enter("backward")
        weight = batch.weight
        (loss if weight == 1.0 else loss * weight).backward()
        if self.after_backward is not None:
            self.after_backward()
        return loss

    def loss_of(self, batch: Batch) -> Tensor:
        return self._loss(self.model(batch.input), batch.target)

    def weights(self) -> dict[str, Tensor] | None:
        return full_weights(self.plain) if self.rank.leads else None

    def state(self) -> dict[str, Any] | None:
        return self.updater.state() if self.rank.leads else None

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.plain.load_state_dict(dict(weights))
        self.updater.load(state)

    @property
    def updates(self) -> int:
        return self.updater.updates

    @property
    def learning_rate(self) -> float | None:
        return self.updater.learning_rate

    def figures(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        return
