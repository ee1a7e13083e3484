"""What a process does in one step, as plain data: the words in which a strategy tells its own timeline.

A timeline is a generator of acts for one step of one process. It knows nothing of tensors or processes: `manyhands plan`
runs those of all processes against a clock (studies/plan/events.py), as `simulate` does with the schedules of pipelines.
Seconds are those of one rank alone on its machine; what sharing cores and memory costs is the simulation's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Work(NamedTuple):
    """Compute."""

    phase: str
    seconds: float


class Idle(NamedTuple):
    """Waiting for what is none of the processes, such as a disk: it takes no core."""

    phase: str
    seconds: float


class Meet(NamedTuple):
    """A collective: it begins when all members are there, and ends for all of them so many seconds later."""

    name: str
    members: int
    seconds: float


class Launch(NamedTuple):
    """A collective that runs beside the work; `Await` waits for its end."""

    name: str
    members: int
    seconds: float


class Await(NamedTuple):
    name: str


class Send(NamedTuple):
    """A message that arrives so many seconds later; nobody waits for that but `Receive`."""

    name: str
    seconds: float


class Receive(NamedTuple):
    name: str


class Take(NamedTuple):
    """A lock: one holds it, the others queue."""

    lock: str


class Release(NamedTuple):
    lock: str


class Spare(NamedTuple):
    """Work that is done while this process would wait for something, or at the latest in `Settle`."""

    phase: str
    seconds: float


class Settle(NamedTuple):
    pass


Act = Work | Idle | Meet | Launch | Await | Send | Receive | Take | Release | Spare | Settle


@dataclass(frozen=True)
class Stage:
    """Shares of a cut model's whole: of its passes, of its trained parameters, and bytes per sample sent on."""

    forward: float
    backward: float
    parameters: float
    sends: float


class Costs(Protocol):
    """What was measured of a job on this machine. All in seconds and bytes."""

    @property
    def batch_size(self) -> int: ...

    @property
    def trained_bytes(self) -> float: ...

    @property
    def weight_bytes(self) -> float: ...

    def part(self, samples: float) -> dict[str, float]:
        """Seconds of each phase of an ordinary step with so many samples, on one rank alone; those of `load` in which it
        only waits are not in it but under `idle`."""

    def overhead(self) -> float:
        """Of a forward and backward pass, what no number of samples makes shorter: Python, and starting operations."""

    def copy(self, size: float) -> float:
        """Copying so many bytes within a host."""

    def all_reduce(self, size: float, members: int) -> float: ...

    def gather(self, size: float, members: int) -> float:
        """All-gather, or reduce-scatter, of so many bytes in all."""

    def message(self, size: float, sender: int, receiver: int) -> float: ...

    def handling(self, size: float) -> float:
        """Of a message, what either end works on it: copies, and Python around them."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Of the cut that the strategy has prepared."""

    @property
    def units(self) -> int:
        """Blocks of the model that are gathered on their own (fsdp)."""


Timeline = Callable[[Costs, int, int], Iterator[Act]]  # costs, process, step
