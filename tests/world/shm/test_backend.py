"""torch's own users of a backend: DDP, FSDP, DTensor."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from manyhands.world.shm import backend as shm
from tests.world.shm.crew import Crew


class Net(nn.Module):
    def __init__(self, unused: bool = False, sparse: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 6, sparse=sparse)
        self.body = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3))
        self.spare = nn.Linear(3, 3) if unused else None

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.embed(x))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 20, (8,), generator=generator), torch.randint(0, 3, (8,), generator=generator)


def train_ddp(rank: int, how: str) -> dict[str, Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    net = Net(unused=how == "unused", sparse=how == "sparse")
    if rank:
        with torch.no_grad():
            net.body[0].weight.zero_()  # DDP must bring rank 0's weights here
    ddp = DistributedDataParallel(net, find_unused_parameters=how == "unused", bucket_cap_mb=0.1)
    if how == "hook":
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    if how == "half":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        quiet = ddp.no_sync() if how == "no_sync" and step % 2 == 0 else contextlib.nullcontext()
        with quiet:
            x, y = batch(step, rank)
            nn.functional.cross_entropy(ddp(x), y).backward()
        if how != "no_sync" or step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.detach() for name, value in net.state_dict().items()}


def train_alone(how: str, ranks: int) -> dict[str, Tensor]:
    net = Net(unused=how == "unused", sparse=how == "sparse")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        for rank in range(ranks):
            x, y = batch(step, rank)
            (nn.functional.cross_entropy(net(x), y) / ranks).backward()
        if how != "no_sync" or step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.detach() for name, value in net.state_dict().items()}


@pytest.mark.parametrize(
    "how", ["default", "half", "unused", "no_sync", "sparse", pytest.param("hook", marks=pytest.mark.soak)]
)
def test_ddp_trains_as_one_process_does(crew: Crew, how: str) -> None:
    answers, should = crew.run(train_ddp, 3, how), train_alone(how, 3)
    for answer in answers:
        assert all(torch.equal(answer[name], answers[0][name]) for name in should)
        for name, value in should.items():
            torch.testing.assert_close(
                answer[name], value, rtol=1e-2 if how == "half" else 1e-4, atol=1e-3 if how == "half" else 1e-6
            )


def train_fsdp(rank: int) -> dict[str, Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = Net()
    mesh = init_device_mesh("cpu", (3,))
    fully_shard(net.body, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        x, y = batch(step, rank)
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.full_tensor() for name, value in net.state_dict().items()}


def test_fsdp_trains_as_one_process_does(crew: Crew) -> None:
    should = train_alone("default", 3)
    for answer in crew.run(train_fsdp, 3):
        for name, value in should.items():
            torch.testing.assert_close(answer[name], value, rtol=1e-4, atol=1e-6)


def distribute(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    whole = torch.arange(48.0).view(6, 8)
    spread = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert spread.to_local().shape == (3, 4)
    assert torch.equal(spread.full_tensor(), whole)
    assert torch.equal(spread.redistribute(mesh, [Replicate(), Shard(0)]).full_tensor(), whole)
    turned = distribute_tensor(whole, mesh["columns"], [Shard(0)])
    assert torch.equal((turned @ turned.t()).full_tensor(), whole @ whole.t())
    assert torch.equal(turned.redistribute(placements=[Shard(1)]).full_tensor(), whole)
    assert turned.sum().full_tensor() == whole.sum()
    assert dist.get_backend(mesh.get_group("rows")) == shm.NAME


def test_dtensor_over_a_two_dimensional_mesh(crew: Crew) -> None:
    crew.run(distribute, 4)
