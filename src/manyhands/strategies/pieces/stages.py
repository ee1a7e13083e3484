"""One rank of a cut model: its stages, their passes in the order of a schedule, and the whole model put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...data.batches import Batch
from ...data.order import PlannedStep
from ...data.splitting import Rule, split
from ...model import Cut, Stage
from ...model.late_weights import AtTheEnd
from ...world.rank import Rank
from ..contract import Loss, Worker
from ..job import Job
from .batch_rules import BatchRules
from .optimizer_state import join_states, part_optimizer
from .pipeline_schedules import Action, Forward, plan, split_sizes
from .rank_model import autocast, full_weights
from .stage_links import Links, Owed, accept, send
from .units import Units, weighted
from .updater import Updater


class StagesWorker(Worker):
    """`peers` are the processes of this replica, in the order of their ranks; stage s lives on peers[s % len(peers)]."""

    def __init__(
        self,
        job: Job,
        rank: Rank,
        pieces: Cut,
        peers: Sequence[int],
        rules: BatchRules | None = None,  # None where batches pass whole
        late_weights: bool = False,
        schedule: str = "gpipe",
        chunks: int = 1,
        split_size: int | None = None,
    ):
        self.pieces, self.peers = pieces, list(peers)
        self._rules = rules or BatchRules("", "")
        self.place = self.peers.index(rank.index)
        self.replicas = rank.ranks // len(self.peers)
        self.last = len(pieces) - 1
        mine = range(self.place, len(pieces), len(self.peers))
        self._sizes = partial(split_sizes, chunks=None if split_size else chunks, split_size=split_size)
        self._actions = partial(plan, schedule, self.place, len(self.peers), stages_per_rank=len(mine))
        self.stages: dict[int, Stage] = {number: pieces.stage(number, job.model.train()) for number in mine}
        forget_the_rest(job.model, self.stages.values())
        for stage in self.stages.values():
            stage.to(rank.device)
        modules = [module for stage in self.stages.values() for module in stage.modules()]
        self._late = AtTheEnd(modules) if late_weights else None
        self.links = Links(rank.device, rank.clock, self._late.meanwhile if self._late else None)
        self.named = self._named_parameters()
        updater = Updater(job, self.named.items(), self._norm, part_optimizer(job, self.named))
        super().__init__(job, rank, job.model, updater)
        self._shared = self._shared_groups()
        several = chunks > 1 or split_size is not None or self.replicas > 1 or job.settings.accumulate > 1
        self.units = Units(job, rank, divided=several, whole=not several)

    # ------------------------------------------------------------ one step

    def step(self, batch: Batch | None) -> Loss | None:
        assert batch is not None
        sizes = self._sizes(max(batch.count, 1))  # an empty shard has borrowed a sample
        loss = self._pass(batch, self._actions(len(sizes)), sizes)
        if batch.update:
            self.finish(batch.step)
        return None if loss is None else self.units.judged(loss)

    def _pass(self, batch: Batch, actions: Sequence[Action], sizes: Sequence[int]) -> Loss | None:
        """Run the chunks of a batch through this rank's stages, forward and backward, as the schedule says."""
        inputs = _split(batch.input, self._rules.input, sizes) if 0 in self.stages else []
        targets = _split(batch.target, self._rules.target, sizes) if self.last in self.stages else []
        under_way: dict[Action, tuple[Owed | None, Tensor]] = {}
        losses: list[tuple[Tensor, Any]] = []  # of chunks, and what each is a mean over
        if self._late is not None:
            self._late.begin(len(sizes), self.stages)
        for action in actions:
            chunk, number = action
            if isinstance(action, Forward):
                arrived, owed = self._arriving(number, chunk, inputs)
                self.rank.clock.enter("forward")
                with autocast(self.job, self.rank.device):
                    output = self.stages[number](*arrived)
                    if number == self.last:
                        end = self.units.loss_of(self.pieces.assemble(output), targets[chunk])
                    else:
                        end = send(output, self._peer(number + 1), self.links, self._tags(number + 1, chunk))
                if number == self.last:
                    losses.append((end.detach(), sizes[chunk] if self.units.weight is None else self.units.part))
                    # a borrowed sample weighs nothing: an empty shard runs along without changing anything
                    end = end * self.units.share(batch, sizes[chunk])
                under_way[action] = owed, end
            else:
                self.rank.clock.enter("backward")
                owed, end = under_way.pop(Forward(chunk, number))
                with self._late.passing(number) if self._late else nullcontext():
                    if end.requires_grad or number == self.last:  # frozen layers have nothing to wait for
                        end.backward()
                if owed is not None:
                    owed.settle()
        if self._late is not None:
            self.rank.clock.enter("backward")
            self._late.settle()
        self.links.drain()
        return self._mean(losses, batch.count) if losses else None

    def _mean(self, losses: Sequence[tuple[Tensor, Any]], samples: int) -> Loss:
        if self.units.weight is not None:
            means, units = (torch.stack(column) for column in zip(*losses, strict=True))
            return Loss(weighted(means, units), samples, units.sum())
        parts = [mean * size for mean, size in losses]
        return Loss(sum(parts[1:], parts[0]) / sum(size for _, size in losses), samples)

    def _arriving(self, number: int, chunk: int, inputs: list[Any]) -> tuple[tuple[Tensor, ...], Owed | None]:
        if number == 0:
            arrived = self.pieces.flatten(inputs[chunk])
            # chunks are views of one batch: what one writes would count as written for the others
            return (tuple(tensor.clone() for tensor in arrived) if self.pieces.writes_input else arrived), None
        return accept(self._peer(number - 1), self.links, self._tags(number, chunk))

    def _peer(self, number: int) -> int:
        return self.peers[number % len(self.peers)]

    def _tags(self, number: int, chunk: int) -> tuple[int, int]:
        """The message into stage `number` of this chunk, and the gradients that come back."""
        base = 2 * (chunk * len(self.pieces) + number)
        return base, base + 1

    def finish(self, step: PlannedStep) -> None:
        """Sum what several stages share, then update."""
        for name, group in self._shared:
            parameter = self.named[name]
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = gradient.to_dense() if gradient.is_sparse else gradient
            self.rank.all_reduce(parameter.grad, group)
        self.rank.clock.enter("update")
        self.updater.update(scale=self.units.scale(step))

    # ------------------------------------------------------------ parameters by their names in the whole model

    def _named_parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters of this rank's stages, in the order of the model."""
        found: dict[str, nn.Parameter] = {}
        for stage in self.stages.values():
            for local, parameter in stage.named_parameters():
                if parameter.requires_grad:
                    found.setdefault(stage.names[local], parameter)
        return {name: found[name] for name in self.pieces.holders if name in found}

    def _shared_groups(self) -> list[tuple[str, dist.ProcessGroup]]:
        """A group for each tied weight that lives on several processes; everyone helps to make every group."""
        groups = []
        for name, holders in sorted(self.pieces.shared.items()):
            places = sorted({holder % len(self.peers) for holder in holders})
            if len(places) < 2:
                continue
            for replica in range(self.replicas):
                members = [self.process(replica, place) for place in places]
                group = dist.new_group(members)
                if self.rank.index in members:
                    groups.append((name, group))
        return groups

    def process(self, replica: int, place: int) -> int:
        return replica * len(self.peers) + place

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of the whole model's gradient; a tied weight counts once, on its first holder.

        After the sum over replicas they all have the same gradients, so the squares of all are `replicas` times those.
        """
        square = torch.zeros((), dtype=torch.float64)
        for name, parameter in self.named.items():
            holders = self.pieces.shared.get(name)
            if parameter.grad is not None and (holders is None or holders[0] in self.stages):
                gradient = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
                square += gradient.abs().double().pow(2).sum().cpu()
        self.rank.all_reduce(square)
        return (square / self.replicas).sqrt()

    # ------------------------------------------------------------ the whole model again

    @property
    def _speaks(self) -> bool:
        """The processes of the first replica speak for all."""
        return self.rank.index < len(self.peers)

    def weights(self) -> dict[str, Tensor] | None:
        mine = {}
        if self._speaks:
            for number, stage in self.stages.items():
                mine[number] = full_weights(stage)
        everyone = self.rank.gather(mine)
        if everyone is None:
            return None
        by_stage = {number: part for item in everyone for number, part in item.items()}
        merged = self.pieces.merge([by_stage[number] for number in range(len(self.pieces))])
        return {name: value.clone() for name, value in merged.items()}

    def state(self) -> dict[str, Any] | None:
        everyone = self.rank.gather(self.updater.state() if self._speaks else None)
        return None if everyone is None else join_states([part for part in everyone if part is not None])

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        for stage in self.stages.values():
            stage.load_state_dict({key: weights[key] for key in stage.state_dict()})
        self.updater.load(state)

    def close(self) -> None:
        self.links.drain()


def _split(value: Any, rule: Rule, sizes: Sequence[int]) -> list[Any]:
    """The chunks of a batch."""
    if len(sizes) == 1:
        return [value]
    ends = list(accumulate(sizes))
    return split(value, rule, [(end - size, end) for end, size in zip(ends, sizes, strict=True)])


def forget_the_rest(model: nn.Module, stages: Any) -> None:
    """Keep the memory of this rank's own layers alone; the others keep their shapes and lose their contents."""
    own = {id(tensor) for stage in stages for tensor in chain(stage.parameters(), stage.buffers())}
    for tensor in chain(model.parameters(), model.buffers()):
        if id(tensor) not in own and tensor.layout == torch.strided:
            tensor.data = torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
