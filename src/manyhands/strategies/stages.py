"""What strategies with a cut model share: the stages of a rank, their passes, and the pieces put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data import nest
from ..data.batches import Batch
from ..job import Job
from ..model import Cut, Stage, cut
from ..world.rank import Rank
from .base import Loss, Strategy
from .links import Links, receive, send
from .parts import Updater, autocast
from .schedules import Action, Forward, split_sizes

EXAMPLE = 32  # samples the costs of layers are measured with


def cut_model(strategy: Strategy, job: Job, stages: int, balance: Any, option: str = "--ranks") -> Cut:
    """Where to cut, worked out once on the caller's side."""
    input, _ = job.example(min(EXAMPLE, job.task.batch_size))
    if job.task.augment is not None:
        keys = torch.arange(nest.count(input), dtype=torch.int64)
        input = job.task.augment(input, keys)
    job.model.train()
    return cut(job.model, stages, input, balance, strategy=strategy.name, option=option)


class StagesWorker:
    """One rank of a cut model: it runs its stages in the order of a schedule.

    `peers` are the processes of this replica, in the order of their ranks; stage s lives on peers[s % len(peers)].
    """

    def __init__(self, job: Job, rank: Rank, pieces: Cut, peers: Sequence[int]):
        self.job, self.rank, self.pieces, self.peers = job, rank, pieces, list(peers)
        self.place = self.peers.index(rank.index)
        self.last = len(pieces) - 1
        self.model = job.model.train()
        mine = [number for number in range(len(pieces)) if number % len(self.peers) == self.place]
        self.stages: dict[int, Stage] = {number: pieces.stage(number, self.model).to(rank.device) for number in mine}
        self.links = Links(rank.device, rank.clock)
        self._shared = self._shared_groups()
        named = self._named_parameters()
        # a rank may hold no trained layer at all; optimizers refuse to be made of nothing
        self.updater = Updater(job, named or [("", nn.Parameter(torch.zeros(0)))], self._norm)

    # ------------------------------------------------------------ one step

    def passes(self, batch: Batch, actions: Sequence[Action], sizes: Sequence[int]) -> Loss | None:
        """Run the chunks of a batch through this rank's stages, forward and backward, as the schedule says."""
        inputs = self._split(batch.input, sizes) if 0 in self.stages else None
        targets = self._split(batch.target, sizes) if self.last in self.stages else None
        ends: dict[tuple[int, int], Tensor] = {}
        total: Tensor | None = None
        for action in actions:
            chunk, number = action
            if isinstance(action, Forward):
                values = self._arriving(number, chunk, inputs)
                self.rank.clock.enter("forward")
                with autocast(self.job, self.rank.device):
                    output = self.stages[number](*values)
                    if number < self.last:
                        ends[chunk, number] = self._leaving(number, chunk, output)
                        continue
                    assert targets is not None
                    loss = self.job.task.loss(self.pieces.assemble(output), targets[chunk])
                ends[chunk, number] = loss * (sizes[chunk] * self._share(batch) / batch.step.group_total)
                part = loss.detach() * sizes[chunk]
                total = part if total is None else total + part
            else:
                self.rank.clock.enter("backward")
                ends.pop((chunk, number)).backward()
        self.links.drain()
        return None if total is None else Loss(total / sum(sizes), batch.count)

    def _share(self, batch: Batch) -> float:
        """0 for a borrowed sample, else 1: an empty shard runs along without changing anything."""
        return 1.0 if batch.count else 0.0

    def _split(self, value: Any, sizes: Sequence[int]) -> list[Any]:
        pieces = []
        start = 0
        for size in sizes:
            pieces.append(nest.each(value, lambda tensor, a=start, b=start + size: tensor[a:b]))  # type: ignore[misc]
            start += size
        return pieces

    def _arriving(self, number: int, chunk: int, inputs: list[Any] | None) -> tuple[Tensor, ...]:
        if number == 0:
            assert inputs is not None
            return self.pieces.flatten(inputs[chunk])
        return receive(self._peer(number - 1), self.links, self._tags(number, chunk))

    def _leaving(self, number: int, chunk: int, output: tuple[Tensor, ...]) -> Tensor:
        return send(output, self._peer(number + 1), self.links, self._tags(number + 1, chunk))

    def _peer(self, number: int) -> int:
        return self.peers[number % len(self.peers)]

    def _tags(self, number: int, chunk: int) -> tuple[int, int]:
        """The message into stage `number` of this chunk, and the gradients that come back."""
        base = 2 * (chunk * len(self.pieces) + number)
        return base, base + 1

    def finish(self, batch: Batch) -> None:
        """Sum what several stages share, then update."""
        for name, group in self._shared:
            parameter = self._by_name[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self.rank.all_reduce(parameter.grad, group)
        self.rank.clock.enter("update")
        self.updater.update()

    # ------------------------------------------------------------ parameters by their names in the whole model

    def _named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        found: dict[str, nn.Parameter] = {}
        for stage in self.stages.values():
            for local, parameter in stage.named_parameters():
                if parameter.requires_grad:
                    found.setdefault(stage.names[local], parameter)
        self._by_name = found
        return list(found.items())

    def _shared_groups(self) -> list[tuple[str, dist.ProcessGroup]]:
        """A group for each tied weight that lives on several processes; everyone helps to make every group."""
        replicas = self.rank.ranks // len(self.peers)
        groups = []
        for name, holders in sorted(self.pieces.shared.items()):
            places = sorted({holder % len(self.peers) for holder in holders})
            if len(places) < 2:
                continue
            for replica in range(replicas):
                members = [self._process(replica, place) for place in places]
                group = dist.new_group(members)
                if self.rank.index in members:
                    groups.append((name, group))
        return groups

    def _process(self, replica: int, place: int) -> int:
        return replica * len(self.peers) + place

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of the whole model's gradient; a tied weight counts once, on its first holder."""
        square = torch.zeros((), dtype=torch.float64)
        for name, parameter in self._by_name.items():
            holders = self.pieces.shared.get(name)
            if parameter.grad is not None and (holders is None or holders[0] in self.stages):
                square += parameter.grad.double().pow(2).sum().cpu()
        self.rank.all_reduce(square)
        return (square / (self.rank.ranks // len(self.peers))).sqrt()

    # ------------------------------------------------------------ the whole model again

    def weights(self) -> dict[str, Tensor] | None:
        mine = {}
        if self.rank.index in self.peers_of_first():
            for number, stage in self.stages.items():
                mine[number] = {key: value.detach().to("cpu", copy=True) for key, value in stage.state_dict().items()}
        everyone = self.rank.gather(mine)
        if everyone is None:
            return None
        by_stage = {number: part for item in everyone for number, part in item.items()}
        merged = self.pieces.merge([by_stage[number] for number in range(len(self.pieces))])
        return {name: value.clone() for name, value in merged.items()}

    def peers_of_first(self) -> list[int]:
        """The processes of the first replica, which speak for all."""
        return list(range(len(self.peers)))

    def state(self) -> dict[str, Any] | None:
        everyone = self.rank.gather(self.updater.state() if self.rank.index in self.peers_of_first() else None)
        if everyone is None:
            return None
        parts = [part for part in everyone if part is not None]
        groups: list[dict[str, Any]] = []
        for part in parts:
            for number, group in enumerate(part["optimizer"]["groups"]):
                names = [name for name in group["names"] if name]
                if number == len(groups):
                    groups.append({**group, "names": names})
                else:
                    groups[number]["names"] += [name for name in names if name not in groups[number]["names"]]
        state = {name: values for part in parts for name, values in part["optimizer"]["state"].items() if name}
        return {**parts[0], "optimizer": {"state": state, "groups": groups}}

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        for stage in self.stages.values():
            stage.load_state_dict({key: weights[key] for key in stage.state_dict()})
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
        self.links.drain()


def chunk_sizes(samples: int, chunks: int | None, split_size: int | None) -> list[int]:
    """The chunks of one batch; a borrowed sample is one chunk."""
    return split_sizes(max(samples, 1), None if split_size else chunks, split_size)
