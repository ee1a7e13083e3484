"""What carries tensors between ranks, by name."""

from __future__ import annotations

import pytest
import torch

from manyhands.errors import BadInput
from manyhands.world.rank import choose_transport

CPU = torch.device("cpu")


def test_a_transport_that_is_named_is_taken() -> None:
    assert choose_transport("gloo", CPU, 2, 2) == "gloo"


@pytest.mark.parametrize(
    ("asked", "hosts", "message"),
    [
        ("mpi", 1, r'no transport named "mpi"; there are: .*gloo'),
        ("shm", 2, r"transport=shm works within one host \(hosts: 2\); use transport=gloo"),
    ],
)
def test_a_transport_that_cannot_be_is_refused(asked: str, hosts: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        choose_transport(asked, CPU, 2, hosts)
