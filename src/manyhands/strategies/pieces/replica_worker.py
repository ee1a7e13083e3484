"""The worker of strategies whose ranks are replicas in one process: the ordinary step, and what each replica did."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...data.batches import Batch
from ...data.splitting import Rule
from ...errors import RankFailed
from ...model.torch_internals import MODULE_TABLES
from ...record.run import PHASES
from ...world.rank import Rank
from ..contract import Loss, Strategy, Worker, refuse
from ..job import Job
from .replica_threads import Threads
from .replicas import DataParallelCriterion, DataParallelModel, Outputs, Replicas
from .worker import OrdinaryWorker


class ReplicaWorker(OrdinaryWorker):
    """The ordinary step with a DataParallelModel in it; `loss` takes the outputs of all replicas."""

    not_captured = Worker.not_captured

    def __init__(
        self,
        job: Job,
        rank: Rank,
        model: DataParallelModel,
        loss: Callable[[Any, Any], Tensor],
        criterion: Replicas | None = None,
    ):
        super().__init__(job, rank, model, model.module)
        self._loss = loss
        self.replicas = model.replicas
        self.criterion = criterion  # where the loss runs on replicas too
        self.gathered_bytes = 0  # outputs of all replicas, held by the first,
        self.loss_bytes = 0  # and what the loss over all of them keeps for backward, in its first step
        self.samples = [0] * len(self.replicas.devices)

    def step(self, batch: Batch | None) -> Loss | None:
        assert batch is not None
        assert isinstance(self.model, DataParallelModel)
        for index, (start, stop) in enumerate(self.model.bounds(batch.count)):
            self.samples[index] += stop - start
        try:
            return super().step(batch)
        except Exception as problem:
            raise self._named(problem) from problem

    def loss_of(self, batch: Batch) -> Tensor:
        return self._loss(self.model(batch.input), batch.target)  # replicas call the model as the task says

    def _named(self, problem: Exception) -> Exception:
        """A failure of a replica names it as the rank it is."""
        index = next((part.failed for part in self._threads if part.failed is not None), None)
        if index is None:
            return problem
        step, phase = self.clock.steps + 1, self.clock.phase
        reason = f"{type(problem).__name__}: {problem}".split("\n")[0]
        return RankFailed(
            f"rank {index} of {len(self.samples)} failed in step {step}, {phase}: {reason}",
            rank=index,
            step=step,
            phase=phase,
            traceback="".join(traceback.format_exception(problem)),
        )

    @property
    def _threads(self) -> list[Threads]:
        return [self.replicas.threads, *([self.criterion.threads] if self.criterion is not None else [])]

    def figures(self) -> dict[str, Any]:
        rows = [self._row(index) for index in range(len(self.samples))]
        notes = []
        if self.job.proof.random and len(set(self.replicas.devices)) < len(self.replicas.devices):
            notes.append("replicas that share a device draw dropout from one generator, in no fixed order: runs differ")
        return {"replicas": rows, "notes": notes}

    def _row(self, index: int) -> dict[str, Any]:
        device = self.replicas.devices[index]
        row: dict[str, Any] = {"rank": index, "device": str(device), "samples": self.samples[index]}
        row["held_bytes"] = self._held(index)
        alone = self.replicas.devices.count(device) == 1
        if device.type == "cuda" and alone:
            row["peak_memory_bytes"] = int(torch.cuda.max_memory_allocated(device))
        elif index:  # the peak of the process stands with its first replica
            row["peak_memory_bytes"] = None
        if self.replicas.threads.on_cpu:
            row["phases_ms"] = self._phases_ms(index)
        return row

    def _held(self, index: int) -> dict[str, int]:
        """Bytes a replica holds while it trains; the first also has the optimizer's state and what was gathered."""
        weights = sum(tensor.nbytes for tensor in self.plain.state_dict().values() if isinstance(tensor, Tensor))
        trained = sum(tensor.nbytes for _, tensor in self.updater.named)
        held = {"weights": weights, "gradients": trained, "activations": self.replicas.saved_bytes[index]}
        if self.criterion is not None:
            held["activations"] += self.criterion.saved_bytes[index]
        states = self.updater.optimizer.state.values()
        first = index == 0
        held["activations"] += self.loss_bytes * first
        held["optimizer"] = sum(t.nbytes for state in states for t in state.values() if isinstance(t, Tensor)) * first
        held["gathered"] = self.gathered_bytes * first
        return held

    def _phases_ms(self, index: int) -> dict[str, float]:
        """The step as this replica spent it: while others still run, or the first works alone, it waits."""
        parts = self._threads
        forward = sum(part.forward_ns[index] for part in parts)
        backward = sum(part.backward_ns[index] for part in parts)
        process = dict(zip(PHASES, self.clock.phases, strict=True))
        if index == 0:
            own = dict(process)
            own["forward"] += forward - sum(part.forward_wall for part in parts)
            own["backward"] += backward - sum(part.backward_wall for part in parts)
        else:
            own = dict.fromkeys(PHASES, 0)
            own.update(forward=forward, backward=backward, communication=process["communication"])
        own["wait"] += sum(process.values()) - sum(own.values())
        steps = max(self.clock.steps, 1)
        return {name: own[name] / steps / 1e6 for name in PHASES}


def replica_devices(rank: Rank, number: int) -> list[torch.device]:
    """A device for every replica: those the fit was given, in turn."""
    return [rank.devices[index % len(rank.devices)] for index in range(number)]


def check_replicas(strategy: Strategy, job: Job) -> None:
    """Refuse what replicas in threads cannot do."""
    if not MODULE_TABLES.found:
        raise refuse(
            strategy,
            f"does not know where torch {torch.__version__} keeps a module's parameters; use ddp, or another torch",
        )
    if job.settings.sync_batchnorm and job.has_batchnorm:
        raise refuse(
            strategy, "runs BatchNorm on each replica's own samples and cannot join them; use ddp with sync_batchnorm"
        )


def losses_where_outputs_are(job: Job, rank: Rank, model: DataParallelModel, rule: Rule) -> ReplicaWorker:
    """A worker that takes each replica's loss on its own device, and the mean over what the losses are means over."""
    criterion = DataParallelCriterion(job.calling.loss_of, model.replicas.devices, rank.clock, rule, job.weight)

    def loss(outputs: Outputs, target: Any) -> Tensor:
        if job.weight is not None:
            worker.units.count(target, rank.device)
        found: Tensor = criterion(outputs, target)
        return found

    worker = ReplicaWorker(job, rank, model, loss, criterion.replicas)
    return worker
