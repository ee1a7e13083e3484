"""What carries tensors between ranks, by name."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from manyhands.errors import BadInput
from manyhands.world.rank import choose_transport
from manyhands.world.shm.trial import transport_for

CPU = torch.device("cpu")


def test_a_transport_that_is_named_is_taken() -> None:
    assert choose_transport("gloo", CPU, 2, 2) == "gloo"
    assert choose_transport("hosts", CPU, 2, 2) == "hosts"


@pytest.mark.parametrize(
    ("processes", "hosts", "chosen"), [(4, 1, "shm"), (4, 2, "hosts"), (3, 2, "hosts"), (2, 2, "gloo"), (4, 4, "gloo")]
)
def test_memory_is_shared_wherever_a_host_has_two_processes(processes: int, hosts: int, chosen: str) -> None:
    assert choose_transport("auto", CPU, processes, hosts) == chosen


def test_ranks_on_cpu_and_gpu_talk_through_one_thing() -> None:
    """The rank on the CPU took shared memory and the one on the GPU gloo: they never met."""
    mixed = [CPU, torch.device("cuda", 0)]
    assert transport_for("auto", mixed, 2) == "gloo"


@pytest.mark.parametrize(
    ("asked", "hosts", "message"),
    [
        ("mpi", 1, r'no transport named "mpi"; there are: .*gloo'),
        ("shm", 2, r"transport=shm works within one host \(hosts: 2\); use transport=hosts"),
    ],
)
def test_a_transport_that_cannot_be_is_refused(asked: str, hosts: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        choose_transport(asked, CPU, 2, hosts)


def test_a_torch_without_what_sums_by_host_need_falls_back_to_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist, "ProcessGroupGloo")
    assert transport_for("auto", [CPU], 4, hosts=2) == "gloo"
    with pytest.raises(BadInput, match=r"transport=hosts does not work with torch .*; use transport=gloo"):
        transport_for("hosts", [CPU], 4, hosts=2)
    monkeypatch.undo()
    assert transport_for("auto", [CPU], 4, hosts=2) == "auto"
