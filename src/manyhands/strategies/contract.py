"""The contract every strategy keeps: a value that says how many ranks, which samples, and what a step is."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..data.batches import Batch
from ..data.order import Shard
from ..data.stream import StreamSource
from ..errors import BadInput, Refused
from ..record.run import option_text
from .job import Job
from .pieces.average import KEY as AVERAGE
from .pieces.rank_model import full_weights
from .timeline import Timeline

if TYPE_CHECKING:
    from ..world.rank import Rank
    from .pieces.updater import Updater


class Loss(NamedTuple):
    """The loss of a step where it is known: its mean over this rank's part, and how many samples that has.

    `units` are what it is a mean over, where that is not samples; not a number where no part of the update has any.
    A worker that runs several steps at once gives the means, and the units, of all of them in one tensor.
    """

    mean: Tensor | float
    count: int  # type: ignore[assignment]  # a tuple has a method of this name, which nobody needs
    units: Tensor | float | None = None


class Worker(ABC):
    """What steps on a rank. `plain` is the model with the user's names, `updater` the optimizer of what is held here.

    The defaults are those of a rank that holds the whole model; a strategy overrides what differs.
    """

    not_captured: str | None = "this strategy's steps talk to other ranks"  # why steps cannot go into a CUDA graph

    def __init__(self, job: Job, rank: Rank, plain: nn.Module, updater: Updater):
        self.job, self.rank, self.plain, self.updater = job, rank, plain, updater
        self.clock = rank.clock

    @abstractmethod
    def step(self, batch: Batch | None) -> Loss | Sequence[Loss] | None:
        """Consume this rank's part of one global batch; servers get None and serve one round."""

    def settle(self) -> list[Loss]:
        """Run what was handed over and has not run yet."""
        return []

    def weights(self) -> dict[str, Tensor] | None:
        """The full model by name, on rank 0; every process takes part."""
        return full_weights(self.plain) if self.rank.leads else None

    def state(self) -> dict[str, Any] | None:
        """Optimizer and schedule by parameter name, whole, on rank 0; every process takes part."""
        return self.updater.state() if self.rank.leads else None

    def average(self) -> dict[str, Tensor]:
        """The average of the trained parameters (`task.ema`) by name, as far as there is one, on rank 0; as with `state`,
        every process takes part."""
        with self.updater.average_alone():
            state = self.state()
        found = state["optimizer"]["state"] if state is not None else {}
        return {name: values[AVERAGE] for name, values in found.items() if AVERAGE in values}

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Continue from weights and state as `weights()` and `state()` gave them, under any strategy."""
        self.plain.load_state_dict(dict(weights))
        self.updater.load(state)

    @property
    def updates(self) -> int:
        """Writes to the weights made by this process."""
        return self.updater.updates

    @property
    def learning_rate(self) -> float | None:
        return self.updater.learning_rate

    def figures(self) -> dict[str, Any]:
        """What this rank alone can say for the record (staleness, replicas, ...)."""
        return {}

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        pass


@dataclass(frozen=True)
class Traits:
    """What is known of a strategy, with its options, before it meets a job."""

    exact: bool | str = True  # promises the weights of `single`, or why not
    processes: int | None = None  # to start: more than `ranks` where some only serve, one where ranks are threads
    runs_on: str = "one host or several, CPU or CUDA"
    hosts: bool = True  # may run over several hosts
    transport: str = "auto"  # what carries its messages
    lockstep: bool = True  # all ranks make the same steps together, so they can agree to stop after one
    survives: bool = False  # the others can go on when a rank dies (`on_death="continue"`)
    helps: bool = False  # a rank that is done with its shares of an epoch may make those of a slower one
    partition: str = "batch"  # a rank reads a part of every batch, or has a "fixed" part of the data
    shards_batch: bool = True  # a layer sees a part of the batch at a time (matters to BatchNorm)
    chunks_batch: bool = False  # a layer runs several times per step, on a chunk of the batch each time
    joins_batchnorm: bool = False  # takes sync_batchnorm
    mixes_devices: bool = True  # some ranks may be on the CPU and others on GPUs
    compiles: bool = False  # its model can be compiled whole (`compile=True`)
    preload: tuple[str, ...] = ()  # modules slow to import, loaded once for all ranks
    copies: tuple[int, int, int] | None = None  # of weights, gradients and optimizer state over all; None: one per rank
    timeline: Timeline | None = field(
        default=None, compare=False, repr=False
    )  # what a process does in a step (timeline.py)


class Strategy(ABC):
    """A frozen dataclass whose fields are its options; printable, comparable, the row label in a report."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `manyhands strategies`
    ranks: int

    @property
    def traits(self) -> Traits:
        """A class may give it as a plain value where it does not depend on the options."""
        return Traits()

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as the record shows them."""
        found = {}
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if item.name != "ranks" and value != item.default:
                found[item.name] = value
        return found

    def check(self, job: Job) -> None:  # noqa: B027  # most have nothing to refuse
        """Refuse what this strategy cannot do with this job; every refusal comes before any process starts."""

    def prepare(self, job: Job) -> Any:
        """Caller's side: what is worked out once and sent to every rank as `job.prepared` (where to cut, say)."""
        return None

    def share(self, job: Job) -> Mapping[str, Tensor] | None:
        """Caller's side: tensors that all ranks see in shared memory."""
        return None

    def feed(self, rank: Rank) -> Shard | None:
        """Which samples this process reads; None for one that only serves."""
        if rank.serves:
            return None
        readers = min(self.ranks, processes(self))  # where ranks are threads, their process reads for all
        return Shard(rank.index, readers, fixed=self.traits.partition == "fixed")

    @abstractmethod
    def setup(self, job: Job, rank: Rank) -> Worker: ...

    def __str__(self) -> str:
        options = ",".join(f"{key}={option_text(value)}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name


def processes(strategy: Strategy) -> int:
    """How many processes to start."""
    return strategy.traits.processes or strategy.ranks


def with_ranks(strategy: Strategy, ranks: int) -> Strategy:
    """The same strategy on another number of ranks; servers stay as many as they were.

    Refuses where the number is tied to another option (hybrid's replicas x stages, one share per replica), or is none.
    """
    if ranks == strategy.ranks:
        return strategy
    try:
        if ranks < 1:
            raise BadInput("it needs at least 1")
        changed: Strategy = dataclasses.replace(strategy, ranks=ranks)  # type: ignore[type-var]
    except BadInput as reason:
        raise refuse(strategy, f"cannot continue with {ranks} ranks instead of {strategy.ranks}: {reason}") from None
    return changed


def divides(strategy: Strategy) -> bool:
    """Whether a step is computed in several parts at all."""
    return strategy.ranks > 1 or strategy.traits.chunks_batch


def admit(strategy: Strategy, job: Job, devices: Sequence[torch.device]) -> None:
    """Refuse what this strategy cannot do with this job on these devices of its ranks, before any process starts."""
    traits = strategy.traits
    if not traits.mixes_devices and len({device.type for device in devices}) > 1:
        places = ", ".join(map(str, devices))
        raise refuse(strategy, f"needs ranks on one kind of device (found {places}); use --device cpu or --device cuda")
    if divides(strategy) and traits.shards_batch and job.proof.divides:
        raise refuse(strategy, f"computes parts of a batch, but {job.proof.divides}; use single or model_parallel")
    if job.settings.compile and not traits.compiles:
        raise refuse(
            strategy, "does not keep the model whole, so it cannot be compiled (compile=True); use single or ddp"
        )
    strategy.check(job)
    apart = divides(strategy) and traits.shards_batch and not traits.joins_batchnorm
    if apart and job.settings.sync_batchnorm and job.has_batchnorm:
        raise refuse(strategy, "does not join BatchNorm over ranks (sync_batchnorm); use ddp")


def check_stream(strategy: Strategy, job: Job, survive: bool) -> None:
    """What needs samples to be asked for by number cannot be had from a stream."""
    if not isinstance(job.train, StreamSource):
        return
    if strategy.traits.partition == "fixed":
        raise refuse(strategy, "cannot give each rank its own part of a stream (partition=fixed); use partition=batch")
    if survive:
        raise refuse(
            strategy,
            "cannot read a dead rank's part of a stream again (on_death=continue); use max_restarts and checkpoint_every",
        )


def refuse(strategy: Strategy, reason: str) -> Refused:
    return Refused(f"{strategy.name} {reason}")


def exactness(strategy: Strategy, job: Job) -> tuple[bool, str | None]:
    """Whether this fit promises the weights of `single`, and why not; what the proof found out counts."""
    if strategy.traits.exact is not True:
        return False, f"{strategy} does not promise the weights of single: {strategy.traits.exact}"
    reason = _objection(strategy.traits, job) if divides(strategy) else None
    return reason is None, reason


def _objection(traits: Traits, job: Job) -> str | None:
    found, parts = job.proof, "chunk" if traits.chunks_batch else "rank"
    if job.optimizer_traits.amplifies:
        return "the optimizer amplifies rounding: sums in another order end in other weights"
    if found.random:
        return f"{found.random}: every {parts} draws its own"
    if traits.shards_batch and job.has_batchnorm and not job.settings.sync_batchnorm:
        if traits.chunks_batch:
            return "BatchNorm sees one chunk of each batch at a time; with chunks=1 it sees the whole"
        advice = "sync_batchnorm makes it whole" if traits.joins_batchnorm else "ddp can make it whole"
        return f"BatchNorm sees a part of each batch at a time; {advice}"
    if traits.shards_batch and found.mixed:
        return found.mixed
    if found.state and (traits.chunks_batch or (traits.shards_batch and found.follows_batch)):
        return f"{found.state}: every {parts} has its own"
    if job.settings.precision != "fp32":
        return "bf16 rounds every part of a batch by itself"
    if traits.shards_batch and found.coarse:
        return f"the forward pass computes in {found.coarse}, which rounds every part of a batch by itself"
    if traits.shards_batch and found.rounding:
        return (
            f'numbers of "{found.rounding}" have a gradient of rounding alone (the loss does not depend on them), of which '
            "the optimizer makes steps that differ with the order of sums; use SGD, or freeze them"
        )
    return None
