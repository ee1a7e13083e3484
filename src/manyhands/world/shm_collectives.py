"""The collectives, as meetings of all ranks in shared memory.

Every collective is a row of *stages*. In a stage each rank may write into its own slot, announces its arrival, waits for
the ranks whose slots it needs, and reads those. Slots and arrivals exist twice, for even and odd stages:

    rank 0   write slot 0 | arrive s | wait for all s | read slots   | write | arrive s+1 | ...
    rank 1   write slot 1 |     arrive s | ............ read slots   |   write | arrive s+1 | ...

Before a rank writes for stage s+1 it makes sure that all have arrived at s: they are then done with s-1, whose slot it
reuses. So one wait a stage is enough, a rank may run at most one stage ahead, and a root that only gives (broadcast,
scatter) or a rank that only hands in (reduce, gather) does not wait at all. The word that announces an arrival carries
the stage and a fingerprint of what is being done, so ranks that call different things are found out, not mixed up.

    n bytes, N ranks; S = slot_bytes        stages                  bytes written and read by one rank
    all_reduce, small (or N = 2)            n / S                   n written, N n read
    all_reduce, large                       2 n / S                 n written, 2 n read: each rank reduces its own part
    reduce_scatter of N x n                 N n / S                 (N-1) n written, N n read
    all_gather of n                         n / S                   n written, N n read
    broadcast, all_to_all                   n / S                   n written once, n read

Sums run over ranks in rank order, on whichever rank does them, so all ranks hold the same bits, the same in every run.
Half-precision numbers are summed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from manyhands.errors import BadInput, RankFailed
from manyhands.world.shm_engine import Meter, Steps
from manyhands.world.shm_memory import Memory, fence

SMALL_BYTES = 64 << 10  # below this everybody sums everything: one stage instead of two
CACHED_VIEWS = 512

Combine = Callable[..., Tensor]
COMBINE: dict[ReduceOp.RedOpType, Combine] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}
NAMES = ("barrier", "all_reduce", "reduce", "reduce_scatter", "all_gather", "gather", "broadcast", "scatter", "all_to_all")
DTYPES = {dtype: code for code, dtype in enumerate(sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str))}
