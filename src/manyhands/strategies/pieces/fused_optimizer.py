"""torch's optimizers as one kernel over all parameters, and SGD's kernel without the Python that comes before it.

In the step of a small model `optimizer.step` takes longer to find its tensors than to write them. What is written is the
same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...model.torch_internals import FUSED_SGD, has_step_hooks


def fuse(optimizer: Optimizer) -> None:
    """Let torch's common optimizers run as one kernel over all parameters, where the user left that open.

    Called when the first gradients are there, because sparse ones cannot be fused. The arithmetic is the same.
    """
    if type(optimizer) not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        return
    for group in optimizer.param_groups:
        gradients = [parameter.grad for parameter in group["params"] if parameter.grad is not None]
        chosen = group.get("fused") is not None or group.get("foreach") is not None or group.get("differentiable")
        plain = all(type(grad) is Tensor and not grad.is_sparse and grad.is_floating_point() for grad in gradients)
        plain = plain and all(p.grad is None or _in_step(p, p.grad) for p in group["params"])
        if not chosen and plain and not isinstance(group["lr"], Tensor):
            group["fused"] = True
            for parameter in group["params"]:  # resumed: the counters of a fused update live beside its parameters
                state = optimizer.state.get(parameter, {})
                if isinstance(state.get("step"), Tensor):
                    state["step"] = state["step"].to(parameter.device)


def _in_step(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of a shape lie in memory in the same order: the kernels go through it number by number."""
    return all(size == 1 or a == b for size, a, b in zip(one.shape, one.stride(), other.stride(), strict=True))


def direct_sgd(
    optimizer: Optimizer, cut: Callable[[list[Tensor]], list[Tensor]] = lambda tensors: tensors
) -> Callable[[], Any] | None:
    """SGD's `step` as its fused kernel alone, over its tensors or what `cut` makes of them; None for anything else."""
    groups, state = optimizer.param_groups, optimizer.state
    tensors = [parameter for group in groups for parameter in group["params"]]
    kinds = {(type(p.data), p.device, p.dtype, p.layout) for p in tensors}
    kernel = FUSED_SGD.found
    if kernel is None or type(optimizer) is not torch.optim.SGD or has_step_hooks(optimizer):
        return None
    if len(kinds) != 1 or next(iter(kinds))[0] is not Tensor:
        return None

    @torch.no_grad()
    def step() -> None:
        for group in groups:
            used = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not group["momentum"]:
                write(group, used, [], first=False)
                continue
            # torch's own fused step fails where some parameters have their first gradient later than others
            new = [parameter for parameter in used if state[parameter].get("momentum_buffer") is None]
            for parameter in new:
                state[parameter]["momentum_buffer"] = torch.empty_like(parameter.grad)
            old = [parameter for parameter in used if not any(parameter is other for other in new)] if new else used
            for parameters, first in ((new, True), (old, False)):
                write(group, parameters, [state[parameter]["momentum_buffer"] for parameter in parameters], first)

    def write(group: dict[str, Any], parameters: list[Tensor], momenta: list[Tensor], first: bool) -> None:
        if parameters:
            gradients = [parameter.grad for parameter in parameters]
            kernel(
                cut(parameters), cut(gradients), cut(momenta),  # type: ignore[arg-type]
                weight_decay=group["weight_decay"], momentum=group["momentum"], lr=group["lr"],
                dampening=group["dampening"], nesterov=group["nesterov"], maximize=group["maximize"],
                is_first_step=first,
            )  # fmt: skip

    return step
