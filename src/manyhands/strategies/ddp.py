"""Distributed data parallel: a whole model on every rank, gradients summed while backward still runs.

    rank 0   forward  backward ------------------.  update
                        [bucket 1 all-reduce]     |
                                  [bucket 2 ...]  |  only what backward does not hide costs time
    rank 1   forward  backward ------------------'  update

    at start     weights are broadcast from rank 0
    each step    every rank computes the gradient of its shard, weighted by shard / global batch;
                 buckets of gradients are summed over ranks as soon as backward has filled them;
                 every rank makes the same update
    accumulate   steps without an update do not communicate

Cost per update, with P bytes of trained parameters and n ranks: bytes handed over n * P; held on each rank:
weights, gradients, optimizer state and the activations of its shard. Exact: sums are weighted with the true
global count, buckets keep their order. Paper: Li et al., "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training", VLDB 2020.
"""

# annotations stay objects here: torch compares those of a communication hook with its own
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..data.batches import Batch
from ..errors import BadInput
from ..model.torch_internals import BUCKET_ORDER
from ..world.devices import default_ranks
from ..world.rank import Rank
from .contract import Loss, Strategy, Traits, Worker
from .job import Job
from .pieces.batchnorm import share_batchnorm
from .pieces.rank_model import place_model, spread_over_devices
from .pieces.units import Units
from .pieces.with_loss import WithLoss, may_miss
from .pieces.worker import OrdinaryWorker, WrappedWorker


@dataclass(frozen=True)
class DDP(Strategy):
    """One process a device; torch's DistributedDataParallel carries the gradients."""

    ranks: int = field(default_factory=default_ranks)
    bucket_mb: float = 25.0
    transport: str = "auto"
    find_unused: bool = False

    name = "ddp"
    summary = "a model on every rank, gradients all-reduced during backward"

    def __post_init__(self) -> None:
        if self.bucket_mb <= 0:
            raise BadInput(f"ddp:bucket_mb must be above 0 (found {self.bucket_mb})")

    @property
    def traits(self) -> Traits:
        return Traits(transport=self.transport, joins_batchnorm=True, compiles=True)

    def setup(self, job: Job, rank: Rank) -> Worker:
        model = place_model(job, rank)
        if not dist.is_initialized():  # a lone rank has nobody to sum with
            return OrdinaryWorker(job, rank, model, model)
        if job.settings.sync_batchnorm:
            share_batchnorm(model)
        return DDPWorker(self, job, rank, model)


class DDPWorker(WrappedWorker):
    """The ordinary step around torch's wrapper, with a hook that sums, counts and times."""

    def __init__(self, strategy: DDP, job: Job, rank: Rank, model: nn.Module):
        self.may_miss = strategy.find_unused or may_miss(job)
        on_one_gpu = rank.device.type == "cuda" and not spread_over_devices(model)
        units = Units(job, rank, divided=True)
        wrapped = DistributedDataParallel(
            WithLoss(model, units),
            device_ids=[rank.device] if on_one_gpu else None,
            bucket_cap_mb=strategy.bucket_mb,
            find_unused_parameters=self.may_miss,
            gradient_as_bucket_view=True,
        )
        settle_buckets(wrapped)
        self.buckets = BucketSums(rank, self)
        wrapped.register_comm_hook(None, self.buckets.sum)
        super().__init__(job, rank, wrapped, model, wrapped.no_sync, self.buckets.settle, units=units)

    def add_gradient(self, batch: Batch) -> Loss:
        loss = super().add_gradient(batch)
        missed = next((name for name, p in self.updater.named if p.grad is None), None)
        if missed is not None and not self.may_miss:
            raise RuntimeError(
                f'the loss did not reach "{missed}" with this batch, though it does with others; use ddp:find_unused=true'
            )
        return loss


def settle_buckets(wrapped: DistributedDataParallel) -> None:
    """Let torch arrange its buckets before the first step instead of after it.

    torch starts with one bucket and cuts it anew once it has seen a backward pass. Which ranks' numbers are added
    first depends on the place in a bucket, so a resumed run would add its first gradients in another order than the
    unbroken one. A backward pass of zeros through the parameters alone, last ones first, settles it.
    """
    reducer = wrapped.reducer
    trained = [parameter for parameter in wrapped.module.parameters() if parameter.requires_grad]
    sparse = any(getattr(module, "sparse", False) for module in wrapped.module.modules())
    if wrapped.find_unused_parameters or sparse or not BUCKET_ORDER.found:
        return  # these buckets are never cut anew; sparse ones travel alone
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    torch.autograd.backward(trained, [torch.zeros_like(parameter) for parameter in trained])
    reducer._rebuild_buckets()
    for parameter in trained:
        parameter.grad = None


class BucketSums:
    """Sums gradient buckets and keeps apart what backward hides and what the step waits for.

    Backward ends when the last bucket has come back. Between the launch of the last bucket and that end
    nothing else happens on the rank: this is exposed communication. What ran before is overlapped.
    """

    def __init__(self, rank: Rank, worker: "DDPWorker"):
        self.rank, self.worker = rank, worker
        self._launched: list[int] = []
        self._returned: list[int] = []
        self._meeting: int | None = None

    def sum(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        if self.worker.empty:
            buffer.zero_()
        if buffer.is_complex():
            buffer = torch.view_as_real(buffer)  # sums of complex numbers are sums of their parts
        self._launched.append(monotonic_ns())
        self.rank.clock.count(buffer.numel() * buffer.element_size())
        if bucket.is_last():
            self._meeting = self.rank.arrive()
            self.rank.say("communication")  # from here on this rank only waits
        work = dist.all_reduce(buffer, async_op=True)
        assert work is not None
        if bucket.is_last() and buffer.device.type == "cpu":
            # backward has nothing left to hide this behind: sum it in this thread rather than wake another
            work.wait()
            self._returned.append(monotonic_ns())
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        def summed(future: torch.futures.Future[Any]) -> Tensor:
            self._returned.append(monotonic_ns())
            future.value()  # raises what went wrong
            return bucket.buffer()

        return work.get_future().then(summed)

    def settle(self) -> None:
        """After backward: book the exposed part as communication, and waiting for the last rank as wait."""
        if not self._launched:
            return
        clock = self.rank.clock
        last = self._launched[-1]
        if self._meeting is not None:
            self.rank.split_wait(self._meeting, last)
        else:
            clock.since("communication", last)
        for out, back in zip(sorted(self._launched), sorted(self._returned), strict=False):
            clock.hide(out, min(back, last))
        self._launched, self._returned, self._meeting = [], [], None
