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
    compress     bf16: gradients travel as bfloat16, half the bytes; powersgd: as low-rank factors (pieces/power_sums.py)

Cost per update, with P bytes of trained parameters and n ranks: bytes handed over n * P; held on each rank:
weights, gradients, optimizer state and the activations of its shard. Exact, unless gradients are compressed: sums
are weighted with the true global count, buckets keep their order. Paper: Li et al., "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training", VLDB 2020.
"""

# annotations stay objects here: torch compares those of a communication hook with its own
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

from ..data.batches import Batch
from ..errors import BadInput
from ..model.torch_internals import BUCKET_ORDER
from ..model.without_compiler import COMPILER
from ..world.devices import default_ranks
from ..world.rank import Rank
from .contract import Loss, Strategy, Traits, Worker, refuse
from .job import Job, trained_parameters
from .pieces.batchnorm import share_batchnorm
from .pieces.power_sums import PowerSums
from .pieces.rank_model import place_model, spread_over_devices
from .pieces.refusals import check_choices, sparse_layer
from .pieces.timelines import summed_in_buckets
from .pieces.units import Units
from .pieces.with_loss import WithLoss, may_miss
from .pieces.worker import OrdinaryWorker, WrappedWorker

EXACT: dict[str, bool | str] = {
    "none": True,
    "bf16": "gradients travel as bfloat16 (compress=bf16), which keeps three digits of a number",
    "powersgd": "gradients travel as low-rank factors (compress=powersgd); what they leave out comes an update later",
}
SHRINKS = {"none": 1.0, "bf16": 0.5, "powersgd": 0.05}  # bytes that travel, about


@dataclass(frozen=True)
class DDP(Strategy):
    """One process per device; torch's DistributedDataParallel carries the gradients.

    Args:
        ranks: how many processes train; by default one per GPU, else one per core, at least 2
        bucket_mb: size of a gradient bucket in MiB; smaller buckets overlap more with the backward pass and cost more
            messages
        transport: what carries messages between ranks: `auto` chooses among `shm` (shared memory, one host), `gloo`,
            `nccl` (a GPU per rank) and `hosts` (several hosts with several ranks each)
        find_unused: look for parameters that a step does not use, in models whose steps use different ones; switched on
            by itself where the samples tried before the start show it
        compress: how gradients travel: `none` whole, `bf16` in half the bytes, `powersgd` as low-rank factors

    Example:
        manyhands train glyphs ddp:bucket_mb=5 --ranks 2
    """

    ranks: int = field(default_factory=default_ranks)
    bucket_mb: float = 25.0
    transport: str = "auto"
    find_unused: bool = False
    compress: str = "none"

    name = "ddp"
    summary = "a model on every rank, gradients all-reduced during backward"

    def __post_init__(self) -> None:
        if self.bucket_mb <= 0:
            raise BadInput(f"ddp:bucket_mb must be above 0 (found {self.bucket_mb})")
        check_choices(self, compress=tuple(EXACT))

    @property
    def traits(self) -> Traits:
        buckets = partial(
            summed_in_buckets, ranks=self.ranks, bucket=self.bucket_mb * 2**20, shrink=SHRINKS[self.compress]
        )
        return Traits(
            exact=EXACT[self.compress],
            transport=self.transport,
            joins_batchnorm=True,
            compiles=True,
            preload=(COMPILER,),  # DistributedDataParallel asks it about itself when it is made
            timeline=buckets,
        )

    def check(self, job: Job) -> None:
        if self.compress == "none":
            return
        if (sparse := sparse_layer(job.model)) is not None:
            raise refuse(self, f'cannot compress sparse gradients (module "{sparse}"); use compress=none')
        for name, parameter in trained_parameters(job.model):
            if parameter.dtype not in (torch.float32, torch.float64):
                raise refuse(self, f'compresses float32 gradients ("{name}" is {parameter.dtype}); use compress=none')

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
        if strategy.compress == "powersgd":
            self.buckets.power = PowerSums(rank.ranks, rank.device)
        wrapped.register_comm_hook(None, self.buckets.sum_bf16 if strategy.compress == "bf16" else self.buckets.sum)
        super().__init__(job, rank, wrapped, model, wrapped.no_sync, self.buckets.settle, units=units)

    def add_gradient(self, batch: Batch) -> Loss:
        loss = super().add_gradient(batch)
        missed = next((name for name, p in self.updater.named if p.grad is None), None)
        if missed is not None and not self.may_miss:
            raise RuntimeError(
                f'the loss did not reach "{missed}" with this batch, though it does with others; use ddp:find_unused=true'
            )
        return loss

    def state(self) -> dict[str, Any] | None:
        """With every rank's memory of what compression left out: as many ranks go on as if nothing had happened."""
        found, power = super().state(), self.buckets.power
        if power is not None:
            memories = self.rank.gather(power.memory())
            if found is not None:
                found["power"] = memories
        return found

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        super().load(weights, state)
        memories = state.get("power", [])
        if self.buckets.power is not None and len(memories) == self.rank.ranks:
            self.buckets.power.load(memories[self.rank.index], self.rank.device)


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
        self.power: PowerSums | None = None

    def sum(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        if self.worker.empty:
            buffer.zero_()
        if self.power is not None:
            return self._sum_compressed(self.power, bucket)
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

    def sum_bf16(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """torch's wrapper, behind another name: under its own torch takes it for NCCL's alone."""
        summed: torch.futures.Future[Tensor] = bf16_compress_wrapper(self.sum)(state, bucket)
        return summed

    def _sum_compressed(self, power: PowerSums, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """A bucket takes several sums, each made from the last.

        On the CPU those of two buckets would meet in another order on every rank, so each bucket is waited for: what it
        takes is communication, and hides nothing. On a GPU the stream keeps the order.
        """
        clock = self.rank.clock
        if bucket.buffer().device.type != "cpu":
            future, nbytes = power.sum(bucket)
        else:
            with clock.during("communication"):
                future, nbytes = power.sum(bucket)
                future.wait()
        clock.count(nbytes)
        return future

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
