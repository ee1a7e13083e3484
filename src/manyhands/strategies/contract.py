"""The contract every strategy keeps: a value that says how many ranks, which samples, and what a step is."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from ..data.batches import Batch
from ..data.order import Shard
from ..data.stream import StreamSource
from ..errors import Refused
from ..record.run import option_text
from .job import Job

if TYPE_CHECKING:
    from ..world.rank import Rank


class Loss(NamedTuple):
    """The loss of a step where it is known: its mean over this rank's samples, and how many those are.

    A worker that runs several steps at once gives the means of all of them in one tensor.
    """

    mean: Tensor | float
    count: int  # type: ignore[assignment]  # a tuple has a method of this name, which nobody needs


class Worker(Protocol):
    """What steps on a rank."""

    def step(self, batch: Batch | None) -> Loss | list[Loss] | None:
        """Consume this rank's part of one global batch; servers get None and serve one round."""

    def weights(self) -> dict[str, Tensor] | None:
        """The full model by name, on rank 0; every process takes part."""

    def state(self) -> dict[str, Any] | None:
        """Optimizer and schedule by parameter name, whole, on rank 0; every process takes part."""

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Continue from weights and state as `weights()` and `state()` gave them, under any strategy."""

    @property
    def updates(self) -> int:
        """Writes to the weights made by this process."""

    @property
    def learning_rate(self) -> float | None: ...

    def figures(self) -> dict[str, Any]:
        """What this rank alone can say for the record (staleness, replicas, ...)."""

    def close(self) -> None: ...


class Strategy(ABC):
    """A frozen dataclass whose fields are its options; printable, comparable, the row label in a report."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `manyhands strategies`
    runs_on: ClassVar[str] = "one host or several, CPU or CUDA"
    exact: ClassVar[bool] = True  # promises the weights of `single`
    shards_batch: ClassVar[bool] = True  # a rank computes on a part of the batch (matters to BatchNorm)
    joins_batchnorm: ClassVar[bool] = False  # takes sync_batchnorm
    any_layout: ClassVar[bool] = True  # weights may lie in memory in another order than row by row
    mixes_devices: ClassVar[bool] = True  # some ranks may be on the CPU and others on GPUs
    hosts: ClassVar[bool] = True  # may run over several hosts
    compiles: ClassVar[bool] = False  # its model can be compiled whole (`compile=True`)
    preload: ClassVar[tuple[str, ...]] = ()  # modules slow to import, loaded once for all ranks
    ranks: int

    @property
    def processes(self) -> int:
        """How many processes to start; more than `ranks` where some only serve, fewer where ranks are threads."""
        return self.ranks

    @property
    def promises_exact(self) -> bool:
        """Whether this strategy with these options promises the weights of `single`."""
        return self.exact

    @property
    def lockstep(self) -> bool:
        """All ranks make the same steps together, so they can agree to stop after one."""
        return self.promises_exact

    @property
    def survives(self) -> bool:
        """The others can go on when a rank dies (`on_death="continue"`)."""
        return False

    @property
    def helps(self) -> bool:
        """A rank that is done with its shares of an epoch may make those of a slower one."""
        return False

    def admit(self, job: Job, devices: Sequence[torch.device]) -> None:
        """Refuse what this strategy cannot do with this job on these devices of its ranks, before any process starts."""
        if not self.mixes_devices and len({device.type for device in devices}) > 1:
            places = ", ".join(map(str, devices))
            raise refuse(self, f"needs ranks on one kind of device (found {places}); use --device cpu or --device cuda")
        if self.divides and self.shards_batch and job.proof.divides:
            raise refuse(self, f"computes parts of a batch, but {job.proof.divides}; use single or model_parallel")
        if job.settings.compile and not self.compiles:
            raise refuse(
                self, "does not keep the model whole, so it cannot be compiled (compile=True); use single or ddp"
            )
        self.check(job)

    def check(self, job: Job) -> None:
        """The strategy's own refusals."""
        return

    def prepare(self, job: Job) -> Any:
        """Caller's side: what is worked out once and sent to every rank as `job.prepared` (where to cut, say)."""
        return None

    def share(self, job: Job) -> Mapping[str, Tensor] | None:
        """Caller's side: tensors that all ranks see in shared memory."""
        return None

    def feed(self, rank: Rank) -> Shard | None:
        """Which samples this process reads; None for one that reads none."""
        return Shard(rank.index, self.ranks)

    @abstractmethod
    def setup(self, job: Job, rank: Rank) -> Worker: ...

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as the record shows them."""
        found = {}
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if item.name != "ranks" and value != item.default:
                found[item.name] = value
        return found

    def __str__(self) -> str:
        options = ",".join(f"{key}={option_text(value)}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name

    @property
    def chunks_batch(self) -> bool:
        """A layer runs several times per step, on a chunk of the batch each time."""
        return False

    @property
    def divides(self) -> bool:
        """Whether a step is computed in several parts at all."""
        return self.ranks > 1 or self.chunks_batch

    def exactness(self, job: Job) -> tuple[bool, str | None]:
        """Whether this fit promises the weights of `single`, and why not; what a probe found out counts (proof.py)."""
        if not self.promises_exact:
            return False, f"{self} does not promise the weights of single"
        reason = self._objection(job) if self.divides else None
        return reason is None, reason

    def _objection(self, job: Job) -> str | None:
        found, parts = job.proof, "chunk" if self.chunks_batch else "rank"
        if job.optimizer_traits.amplifies:
            return "the optimizer amplifies rounding: sums in another order end in other weights"
        if found.random:
            return f"{found.random}: every {parts} draws its own"
        if self.shards_batch and job.has_batchnorm and not job.settings.sync_batchnorm:
            if self.chunks_batch:
                return "BatchNorm sees one chunk of each batch at a time; with chunks=1 it sees the whole"
            advice = "sync_batchnorm makes it whole" if self.joins_batchnorm else "ddp can make it whole"
            return f"BatchNorm sees a part of each batch at a time; {advice}"
        if self.shards_batch and found.mixed:
            return found.mixed
        if found.state and (self.chunks_batch or (self.shards_batch and found.follows_batch)):
            return f"{found.state}: every {parts} has its own"
        if job.settings.precision != "fp32":
            return "bf16 rounds every part of a batch by itself"
        if self.shards_batch and found.coarse:
            return f"the forward pass computes in {found.coarse}, which rounds every part of a batch by itself"
        return None


def check_stream(strategy: Strategy, job: Job, survive: bool) -> None:
    """What needs samples to be asked for by number cannot be had from a stream."""
    if not isinstance(job.train, StreamSource):
        return
    if getattr(strategy, "partition", None) == "fixed":
        raise refuse(strategy, "cannot give each rank its own part of a stream (partition=fixed); use partition=batch")
    if survive:
        raise refuse(
            strategy,
            "cannot read a dead rank's part of a stream again (on_death=continue); use max_restarts and checkpoint_every",
        )


def refuse(strategy: Strategy, reason: str) -> Refused:
    return Refused(f"{strategy.name} {reason}")
