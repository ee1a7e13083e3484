"""Fully sharded data parallel: every rank keeps a shard of each parameter; layers are whole only while they run.

    each unit (a block of the model, or the whole of what is left)
      forward    all-gather its parameters, compute, drop them again
      backward   all-gather them once more, compute, reduce-scatter the gradient: each rank keeps its shard's sum
    update       every rank updates its shard alone, as a plain tensor: any optimizer that treats numbers one by one will do
    kept whole   single numbers (shape ()); a model whose batches may miss parameters is one unit, gathered whole

    rank 0   [gather] forward [gather] forward ... [gather] backward [scatter] ...  update its half
    rank 1   [gather] forward [gather] forward ... [gather] backward [scatter] ...  update its half

Cost per update, with n ranks, G bytes of parameters (rows of each rounded up to a multiple of n), of which R outside
of any unit, and T trained: bytes handed over 2 G - R + n T (each rank hands over its shard in a gather, its whole
gradient in a scatter). With accumulate > 1 parameters stay whole until the update: G + n T, at the price of
memory. Held: 1/n of weights, gradients and optimizer state, the activations of the rank's shard of the batch, and the
parameters of the units at work. Exact: gradients are weighted with the true global count and summed. Paper: Zhao et
al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023; Rajbhandari et al., "ZeRO", 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..data import nest
from ..data.process_state import seeded
from ..errors import BadInput
from ..model.fsdp_units import find_units
from ..model.layout import take_channels_last
from ..model.optimizers import stand_in
from ..model.without_compiler import COMPILER
from ..world.devices import default_ranks
from ..world.launch.by_value import hooks_on
from ..world.rank import Rank
from .contract import Strategy, Traits, Worker, refuse
from .job import Job, trained_parameters
from .pieces.batchnorm import share_batchnorm
from .pieces.optimizer_state import change_state
from .pieces.rank_model import place_model, spread_over_devices
from .pieces.refusals import sparse_layer
from .pieces.shard_collectives import AllGather, ReduceScatter
from .pieces.timelines import sharded
from .pieces.units import Units
from .pieces.with_loss import WithAllGradients, WithLoss, may_miss
from .pieces.worker import OrdinaryWorker, WrappedWorker


@dataclass(frozen=True)
class FSDP(Strategy):
    """One process per device; torch's fully_shard spreads parameters, gradients and optimizer state over ranks.

    Args:
        ranks: how many processes train; by default one per GPU, else one per core, at least 2
        unit_mb: blocks of at least this many MiB are gathered on their own; 0 makes every block such a unit
        transport: what carries messages between ranks: `auto` chooses among `shm` (shared memory, one host), `gloo`,
            `nccl` (a GPU per rank) and `hosts` (several hosts with several ranks each)

    Example:
        manyhands train glyphs fsdp:unit_mb=0 --ranks 2
    """

    ranks: int = field(default_factory=default_ranks)
    unit_mb: float = 1.0
    transport: str = "auto"

    name = "fsdp"
    summary = "weights, gradients and optimizer state in shards over ranks, gathered layer by layer"

    def __post_init__(self) -> None:
        if self.unit_mb < 0:
            raise BadInput(f"fsdp:unit_mb must be 0 or more (found {self.unit_mb:g})")

    @property
    def traits(self) -> Traits:
        return Traits(
            transport=self.transport,
            joins_batchnorm=True,
            mixes_devices=False,
            copies=(2, 2, 1),  # one in shards, and about one more in the units at work
            preload=("torch.distributed.fsdp", "torch.distributed.tensor", COMPILER),
            timeline=partial(sharded, ranks=self.ranks),
        )

    def check(self, job: Job) -> None:
        if spread_over_devices(job.model):
            places = sorted({str(parameter.device) for parameter in job.model.parameters()})
            raise refuse(
                self, f"shards a model over ranks, but this one spread itself over {', '.join(places)}; use ddp"
            )
        kinds = {str(parameter.dtype).removeprefix("torch.") for parameter in job.model.parameters()}
        if len(kinds) > 1:
            raise refuse(self, f"sums gradients of one type, but parameters are {', '.join(sorted(kinds))}; use ddp")
        if self.ranks > 1:
            self._check_shards(job)
        if (sparse := sparse_layer(job.model)) is not None:
            raise refuse(self, f'cannot shard sparse gradients (module "{sparse}"); use ddp or parameter_server')

    def _check_shards(self, job: Job) -> None:
        """What needs whole parameters: some optimizers, hooks, and a forward pass that writes them."""
        if job.optimizer_traits.joins_rows or job.optimizer_traits.joins_tensors:
            raise refuse(self, "updates shards of the parameters, but this optimizer looks at them together; use ddp")
        if any(isinstance(module, torch.jit.ScriptModule) for module in job.model.modules()):
            raise refuse(self, "wraps the modules of a model, which scripted ones do not allow; use ddp")
        for name, parameter in job.model.named_parameters():
            if hooks_on(parameter):
                raise refuse(self, f'replaces parameters by shards, and the hook on "{name}" with them; use ddp')
        if job.proof.writes:
            name = job.proof.writes[0]
            raise refuse(self, f'gathers parameters for a pass and drops what it writes into "{name}"; use ddp')

    def prepare(self, job: Job) -> list[str]:
        """Names of the units, the same for every rank; none where a rank may come by a unit that another misses."""
        if may_miss(job):
            return []
        model, calling, augment = job.copies()
        input = nest.each(job.example()[0], Tensor.clone)

        def trial(model: nn.Module) -> None:
            with seeded(job.task.seed):
                keys = torch.arange(nest.count(input))
                calling.output(model.train(), augment(input, keys) if augment is not None else input)

        return find_units(model, int(self.unit_mb * 2**20), trial)

    def setup(self, job: Job, rank: Rank) -> Worker:
        model = place_model(job, rank)
        if rank.processes == 1:
            return OrdinaryWorker(job, rank, model, model)  # one shard is the whole
        if job.settings.sync_batchnorm:
            share_batchnorm(model)
        return FSDPWorker(job, rank, model)


class FSDPWorker(WrappedWorker):
    """The ordinary step on a sharded model; sums, counts and times what travels.

    `sharded` are the trained parameters as torch cuts them, by name; the optimizer has this rank's part of each as a plain
    parameter over the same memory.
    """

    def __init__(self, job: Job, rank: Rank, model: nn.Module):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        kept_whole = {parameter for parameter in model.parameters() if parameter.dim() == 0}
        user_given = dict(trained_parameters(model))
        units = Units(job, rank, divided=True)
        root = WithAllGradients(model, units) if may_miss(job) else WithLoss(model, units)
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()  # what is cut into rows must lie row by row
        if job.channels_last:
            take_channels_last(model)
        mesh = init_device_mesh(rank.device.type, (rank.processes,))
        drop = job.settings.accumulate == 1  # accumulating, parameters stay whole until the update
        for name in job.prepared:
            unit = model.get_submodule(name)
            fully_shard(unit, mesh=mesh, reshard_after_forward=drop, ignored_params=kept_whole)
        fully_shard(
            root, mesh=mesh, reshard_after_forward=False, ignored_params=kept_whole
        )  # backward needs it at once
        self.shards = [module for module in root.modules() if isinstance(module, FSDPModule)]
        for module in self.shards:
            module.set_custom_all_gather(AllGather(rank))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(ReduceScatter(rank, self))  # type: ignore[arg-type]
            module.set_gradient_divide_factor(1.0)  # shards are weighted already: gradients are sums
            module.set_force_sum_reduction_for_comms(True)
        self.sharded = dict(trained_parameters(model))
        self._communicating = True
        own = [(name, stand_in(user_given[name], _local(p.detach()))) for name, p in self.sharded.items()]
        super().__init__(job, rank, root, model, self._held_back, self._take_gradients, self._norm, own, units)

    def _take_gradients(self) -> None:
        """After a backward pass that summed them, the gradients of the shards are the optimizer's."""
        if not self._communicating:
            return
        for name, own in self.updater.named:
            parameter = self.sharded[name]
            own.grad = None if parameter.grad is None else _local(parameter.grad)
            parameter.grad = None
        self._sum_whole()
        if isinstance(self.model, WithAllGradients):
            self.model.forget_unreached(self.updater.named, self.rank, self.empty)
        if all(own.grad is None for _, own in self.updater.named):
            raise RuntimeError("no gradient reached a parameter, so nothing would be trained")

    def _sum_whole(self) -> None:
        """Single numbers are on every rank: their gradients are summed as one small buffer, with a mark for each that has one."""
        held = [own for name, own in self.updater.named if not _is_cut(self.sharded[name])]
        if not held:
            return
        found = [
            (own.grad, 1.0) if own.grad is not None and not self.empty else (own.new_zeros(()), 0.0) for own in held
        ]
        buffer = torch.stack([torch.stack([value for value, _ in found]), held[0].new_tensor([m for _, m in found])])
        self.rank.all_reduce(buffer)
        for own, total, marks in zip(held, *buffer, strict=True):
            own.grad = total if marks else None

    @contextmanager
    def _held_back(self) -> Iterator[None]:
        """A step that only accumulates: gradients are not summed, parameters are not dropped."""
        self._communicate(False)
        yield
        self._communicate(True)

    def _communicate(self, on: bool) -> None:
        self._communicating = on
        for module in self.shards:
            module.set_requires_gradient_sync(on, recurse=False)
            module.set_reshard_after_backward(on, recurse=False)

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """Of the whole gradient: squares of every rank's shards, summed; what all ranks hold counts on the first."""
        mine = [g for g in gradients if g.dim() or self.rank.index == 0]
        local = [torch.linalg.vector_norm(gradient) for gradient in mine]
        total = torch.stack(local).square().sum() if local else torch.zeros((), device=self.rank.device)
        self.rank.all_reduce(total)
        return total.sqrt()

    # ------------------------------------------------------------ whole tensors by name

    def weights(self) -> dict[str, Tensor] | None:
        for module in self.shards:
            module.reshard()
        state = self.plain.state_dict().items()
        whole = {name: self._whole(value, _is_cut(value)) for name, value in state if isinstance(value, Tensor)}
        return whole if self.rank.index == 0 else None

    def state(self) -> dict[str, Any] | None:
        named = dict(self.updater.named)

        def joined(name: str, value: Any) -> Any:
            sharded = isinstance(value, Tensor) and value.shape == named[name].shape and _is_cut(self.sharded[name])
            return self._whole(value, True) if sharded else value

        whole = change_state(self.updater.state(), joined)
        return whole if self.rank.index == 0 else None

    def _whole(self, tensor: Tensor, cut: bool) -> Tensor:
        """All shards together on rank 0, on the CPU; every rank takes part, in the same order."""
        own = _local(tensor.detach()).to("cpu", copy=True)
        parts = self.rank.gather(own) if cut else None
        return own if parts is None else torch.cat(parts)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        for name, own in self.plain.state_dict().items():
            own.copy_(_sharded_like(weights[name], own))
        self.updater.load(change_state(state, lambda name, value: _local(_sharded_like(value, self.sharded[name]))))


def _is_cut(tensor: Tensor) -> bool:
    return hasattr(tensor, "placements")


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _sharded_like(value: Any, own: Tensor) -> Any:
    """This rank's shard of a whole tensor, cut as `own` is; what is not shaped like it stays."""
    if not isinstance(value, Tensor) or not hasattr(own, "device_mesh") or value.shape != own.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements, src_data_rank=None)  # type: ignore[attr-defined]
