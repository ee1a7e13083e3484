"""What strategies with a cut model share: the stages of a rank, their passes, and the pieces put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import accumulate, chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...data import nest
from ...data.batches import Batch
from ...data.process_state import seeded
from ...data.splitting import Rule, split
from ...model import Cut, Stage, cut
from ...model.late_weights import AtTheEnd
from ...world.rank import Rank
from ..contract import Loss, Strategy, Worker, refuse
from ..job import Job
from .batch_rules import BatchRules
from .links import Links, Owed, accept, send
from .part_optimizer import part_optimizer
from .pipeline_schedules import Action, Forward
from .rank_model import autocast, full_weights
from .updater import Updater

EXAMPLE = 32  # samples the costs of layers are measured with
Balance = tuple[int, ...] | str


def cut_model(
    strategy: Strategy, job: Job, stages: int, balance: Balance, option: str = "--ranks", several: bool = False
) -> Cut:
    """Where to cut, worked out once on the caller's side; names of layers are written a+b.

    `several`: whether a step runs the model's forward several times, on a part of the batch each.
    """
    if stages > 1 and job.optimizer_traits.joins_tensors:
        raise refuse(
            strategy,
            f"updates the layers of each stage alone, but this optimizer looks at all of them together (stages: {stages}); "
            "use ddp",
        )
    if isinstance(job.model, torch.jit.ScriptModule):
        raise refuse(
            strategy, "cannot look into a scripted model to cut it; give the model it was scripted from, or use ddp"
        )
    samples = min(EXAMPLE, job.task.batch_size, len(job.train))
    example, fewer = _input(job, samples), _input(job, max(samples - 1, 1))
    if len(list(nest.items(example))) != len(list(nest.items(fewer))):
        raise refuse(
            strategy,
            f"cuts models whose input holds the same number of tensors in every batch (found {type(example).__name__}s "
            "that grow with the number of samples); stack them in task.collate, or use ddp",
        )
    asked = balance.split("+") if isinstance(balance, str) and "+" in balance else balance
    pieces = cut(job.model.train(), stages, example, asked, fewer=fewer, strategy=strategy.name, option=option)
    own = {name for name, _ in job.model.named_parameters()}
    if several and (written := sorted(own & pieces.program.written)):
        raise refuse(
            strategy,
            f'runs the forward several times per step, and it writes the parameter "{written[0]}" each time; '
            "use model_parallel, or chunks=1",
        )
    return pieces


def _input(job: Job, samples: int) -> Any:
    """The first samples as the model gets them, on its device."""
    place = next((parameter.device for parameter in job.model.parameters()), torch.device("cpu"))
    with seeded(job.task.seed):
        input = nest.each(job.example(samples)[0], lambda tensor: tensor.to(place))
        if job.task.augment is not None:
            input = job.task.augment(input, torch.arange(samples, dtype=torch.int64, device=place))
    return input


class StagesWorker(Worker):
    """One rank of a cut model: it runs its stages in the order of a schedule.

    `peers` are the processes of this replica, in the order of their ranks; stage s lives on peers[s % len(peers)].
    """

    def __init__(
        self,
        job: Job,
        rank: Rank,
        pieces: Cut,
        peers: Sequence[int],
        rules: BatchRules | None = None,  # None where batches pass whole
        late_weights: bool = False,
    ):
        self.pieces, self.peers = pieces, list(peers)
        self._rules = rules or BatchRules("", "")
        self.place = self.peers.index(rank.index)
        self.replicas = rank.ranks // len(self.peers)
        self.last = len(pieces) - 1
        mine = range(self.place, len(pieces), len(self.peers))
        self.stages: dict[int, Stage] = {number: pieces.stage(number, job.model.train()) for number in mine}
        _forget_the_rest(job.model, self.stages.values())
        for stage in self.stages.values():
            stage.to(rank.device)
        modules = [module for stage in self.stages.values() for module in stage.modules()]
        self._late = AtTheEnd(modules) if late_weights else None
        self.links = Links(rank.device, rank.clock, self._late.meanwhile if self._late else None)
        self.named = self._named_parameters()
        updater = Updater(job, self.named.items(), self._norm, part_optimizer(job, self.named))
        super().__init__(job, rank, job.model, updater)
        self._shared = self._shared_groups()

    # ------------------------------------------------------------ one step

    def passes(self, batch: Batch, actions: Sequence[Action], sizes: Sequence[int]) -> Loss | None:
        """Run the chunks of a batch through this rank's stages, forward and backward, as the schedule says."""
        inputs = _split(batch.input, self._rules.input, sizes) if 0 in self.stages else []
        targets = _split(batch.target, self._rules.target, sizes) if self.last in self.stages else []
        under_way: dict[Action, tuple[Owed | None, Tensor]] = {}
        total: Tensor | None = None
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
                        end = self.job.task.loss(self.pieces.assemble(output), targets[chunk])
                    else:
                        end = send(output, self._peer(number + 1), self.links, self._tags(number + 1, chunk))
                if number == self.last:
                    part = end.detach() * sizes[chunk]
                    total = part if total is None else total + part
                    # a borrowed sample weighs nothing: an empty shard runs along without changing anything
                    end = end * (sizes[chunk] * bool(batch.count) / batch.step.group_total)
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
        return None if total is None else Loss(total / sum(sizes), batch.count)

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

    def finish(self) -> None:
        """Sum what several stages share, then update."""
        for name, group in self._shared:
            parameter = self.named[name]
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = gradient.to_dense() if gradient.is_sparse else gradient
            self.rank.all_reduce(parameter.grad, group)
        self.rank.clock.enter("update")
        self.updater.update()

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
        if everyone is None:
            return None
        parts = [part for part in everyone if part is not None]
        return {**parts[0], "optimizer": _joined([part["optimizer"] for part in parts])}

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


def _forget_the_rest(model: nn.Module, stages: Any) -> None:
    """Keep the memory of this rank's own layers alone; the others keep their shapes and lose their contents."""
    own = {id(tensor) for stage in stages for tensor in chain(stage.parameters(), stage.buffers())}
    for tensor in chain(model.parameters(), model.buffers()):
        if id(tensor) not in own and tensor.layout == torch.strided:
            tensor.data = torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One optimizer's state out of those of the stages, which all have the same groups."""
    state = {name: values for part in parts for name, values in part["state"].items()}
    groups = []
    for several in zip(*(part["groups"] for part in parts), strict=True):
        names = dict.fromkeys(name for group in several for name in group["names"])
        groups.append({**several[0], "names": list(names)})
    return {"state": state, "groups": groups}
