"""Differentiable send and receive in loops of one's own: sizes change, integers pass, nobody waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from manyhands.errors import BadInput
from manyhands.strategies.pieces.stage_links import DTYPES, Links, accept, receive, send
from manyhands.world.launch.together import together

TRANSPORTS = ["gloo", "shm"]
SIZES = (3, 7, 1, 5)


def on_two_ranks(body: Callable[[int], Any], transport: str) -> list[Any]:
    return together(body, 2, transport=transport, time_limit=30)


def layers() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return nn.Linear(4, 6), nn.Linear(6, 2)


def batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    input = torch.randn(size, 4, generator=generator)
    return input, torch.randint(6, (size,), generator=generator), input[:, 0] > 0


def gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def hand_written(rank: int) -> Any:
    """One batch after the other over two ranks; sizes change, integers and booleans go along."""
    first, second = layers()
    kinds = []
    for size in SIZES:
        input, chosen, mask = batch(size)
        if rank == 0:
            hidden = torch.tanh(first(input))
            send([hidden, chosen, mask], to=1).backward()
        else:
            hidden, chosen, mask = receive(0)
            picked = hidden.gather(1, chosen[:, None]) * mask[:, None]
            (second(hidden).sum() + picked.sum()).backward()
            kinds.append((hidden.requires_grad, chosen.dtype, mask.dtype, len(hidden)))
    return gradients(first if rank == 0 else second), kinds


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_hand_written_loop_has_the_gradients_of_one_process(transport: str) -> None:
    (front, _), (back, kinds) = on_two_ranks(hand_written, transport)
    first, second = layers()
    for size in SIZES:
        input, chosen, mask = batch(size)
        hidden = torch.tanh(first(input))
        (second(hidden).sum() + (hidden.gather(1, chosen[:, None]) * mask[:, None]).sum()).backward()
    for found, expected in zip([*front, *back], [*gradients(first), *gradients(second)], strict=True):
        assert torch.equal(found, expected)
    assert kinds == [(True, torch.int64, torch.bool, size) for size in SIZES]


def many_at_once(rank: int) -> list[Tensor]:
    """A pipeline by hand: all messages leave before the first is taken, and are answered in another order."""
    links, weight = Links(), torch.ones(64, 64, requires_grad=True)
    if rank == 0:
        tokens = [send([weight * chunk], 1, links, tags=(2 * chunk, 2 * chunk + 1)) for chunk in range(8)]
        dist.barrier()  # nothing was received so far: a send that waits would end here
        for token in tokens:
            token.backward()
        return [weight.grad]  # type: ignore[list-item]
    dist.barrier()
    arrived = [receive(0, links, (2 * chunk, 2 * chunk + 1))[0] for chunk in reversed(range(8))]
    for number, tensor in enumerate(arrived):
        (tensor * number).sum().backward()
    links.drain()
    return [tensor.detach() for tensor in arrived]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sends_do_not_wait_for_the_receiver(transport: str) -> None:
    [grad], arrived = on_two_ranks(many_at_once, transport)
    assert torch.equal(grad, torch.full((64, 64), float(sum(chunk * (7 - chunk) for chunk in range(8)))))
    assert [float(tensor[0, 0]) for tensor in arrived] == [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]


def every_type() -> list[Tensor]:
    whole = torch.arange(24).reshape(2, 3, 4)
    return [*(whole.to(dtype) for dtype in DTYPES), whole.t() if whole.dim() == 2 else whole.transpose(0, 2).float()]


def odd_messages(rank: int) -> Any:
    """All types (more than fit into one header), a number, an empty tensor, no tensor at all."""
    links = Links()
    messages = [every_type() * 2, [torch.tensor(3.5)], [torch.empty(0, 7)], []]
    if rank == 0:
        for message in messages:
            links.send(message, 1)
        links.drain()
        return None
    (many, _), *others = [links.receive(0) for _ in messages]
    same = [one.dtype == two.dtype and torch.equal(one, two) for one, two in zip(many, every_type() * 2, strict=True)]
    return same, *(tensors for tensors, _ in others)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_types_shapes_and_numbers_of_tensors_pass(transport: str) -> None:
    _, (many, number, empty, none) = on_two_ranks(odd_messages, transport)
    assert many == [True] * (2 * len(DTYPES) + 2)
    assert float(number[0]) == 3.5
    assert empty[0].shape == (0, 7)
    assert none == []


def nothing_to_answer(rank: int) -> Any:
    """What wants no gradient is not answered; what no backward pass reaches is answered with none."""
    links = Links()
    reached, missed = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    if rank == 0:
        frozen = send([torch.ones(3)], 1, links)
        send([missed * 2, missed * 3], 1, links).backward()
        send([reached * 2, missed * 3], 1, links).backward()
        return frozen.requires_grad, reached.grad, missed.grad
    plain = receive(0, links)[0]
    (one, two), owed = accept(0, links, (0, 1))
    assert one.requires_grad
    assert two.requires_grad
    (one.detach() * torch.ones(3, requires_grad=True)).sum().backward()
    assert owed.open
    owed.settle()
    owed.settle()  # once is enough
    receive(0, links)[0].sum().backward()
    links.drain()
    return plain.requires_grad


def test_frozen_tensors_have_no_answer_and_unreached_ones_no_gradient() -> None:
    (frozen, reached, missed), plain = on_two_ranks(nothing_to_answer, "shm")
    assert (frozen, plain) == (False, False)
    assert torch.equal(reached, torch.full((3,), 2.0))
    assert missed is None


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"a tensor of torch.float32 and torch.sparse_coo cannot be sent; send dense numbers"
    ):
        Links().send([torch.eye(2).to_sparse()], 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_would_wait_for_a_message_does_something_else_meanwhile(transport: str) -> None:
    def body(rank: int) -> int:
        left = [3]

        def work() -> bool:
            left[0] -= 1
            return left[0] >= 0

        if rank == 0:
            dist.barrier()
            links = Links()
            links.send([torch.ones(2)], to=1)
            links.drain()
            return 0
        coming = Links(meanwhile=lambda: work() or (dist.barrier(), False)[1])
        (tensor,), _ = coming.receive(0)  # rank 0 sends only after everything else was done
        assert tensor.tolist() == [1, 1]
        return left[0]

    assert on_two_ranks(body, transport) == [0, -1]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_ends_at_once_leaves_the_others_time_to_connect(transport: str) -> None:
    """Rank 0 sent, ended and took the store along that rank 1 was still connecting through."""

    def late(rank: int) -> int:
        return rank

    assert [together(late, 2, transport=transport, time_limit=30) for _ in range(4)] == [[0, 1]] * 4
