"""Exchanges between hosts against their closed forms, and against a ring that is walked message by message."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.studies.plan import collectives
from manyhands.studies.plan.link import Link

LINK = Link.parse("10gbit,50us")
ALPHA, BETA = LINK.seconds, LINK.bytes_per_second
HOSTS, SIZES = st.integers(1, 5000), st.floats(0, 1e12)
QUICK = settings(derandomize=True, deadline=None)


def walked_ring(hosts: int, size: float) -> float:
    """When every host has the sum: each passes on a part once it has received one, 2 (n-1) times."""
    ready = [0.0] * hosts
    for _ in range(2 * (hosts - 1)):
        ready = [max(ready[host], ready[host - 1]) + ALPHA + size / hosts / BETA for host in range(hosts)]
    return max(ready)


@QUICK
@given(HOSTS, SIZES)
def test_the_closed_forms(hosts: int, size: float) -> None:
    half = (hosts - 1) * ALPHA + (hosts - 1) / hosts * size / BETA
    assert collectives.all_gather(hosts, size, LINK) == pytest.approx(half)
    assert collectives.reduce_scatter(hosts, size, LINK) == pytest.approx(half)
    assert collectives.ring_all_reduce(hosts, size, LINK) == pytest.approx(2 * half)
    assert collectives.hierarchical_all_reduce(hosts, size, LINK, 0.25) == pytest.approx(0.25 + 2 * half)
    levels = math.ceil(math.log2(hosts))
    assert collectives.tree_all_reduce(hosts, size, LINK) == pytest.approx(2 * levels * (ALPHA + size / BETA))


@QUICK
@given(st.integers(1, 40), SIZES)
def test_a_ring_walked_message_by_message_takes_as_long(hosts: int, size: float) -> None:
    assert collectives.ring_all_reduce(hosts, size, LINK) == pytest.approx(walked_ring(hosts, size))


@QUICK
@given(HOSTS, SIZES)
def test_the_quicker_one_is_chosen(hosts: int, size: float) -> None:
    ring, tree = (form(hosts, size, LINK) for form in (collectives.ring_all_reduce, collectives.tree_all_reduce))
    assert collectives.all_reduce(hosts, size, LINK) == min(ring, tree)


def test_a_tree_is_quicker_for_few_bytes_and_a_ring_for_many() -> None:
    assert collectives.tree_all_reduce(1000, 1e3, LINK) < collectives.ring_all_reduce(1000, 1e3, LINK)
    assert collectives.tree_all_reduce(1000, 1e10, LINK) > collectives.ring_all_reduce(1000, 1e10, LINK)


@pytest.mark.parametrize(
    "form",
    [collectives.all_reduce, collectives.all_gather, collectives.reduce_scatter, collectives.exchange_with_servers],
)
def test_one_host_exchanges_nothing(form: Callable[[int, float, Link], float]) -> None:
    assert form(1, 1e9, LINK) == 0


def test_servers_move_as_many_bytes_as_a_ring_with_two_latencies() -> None:
    assert collectives.exchange_with_servers(8, 1e9, LINK) == pytest.approx(2 * ALPHA + 2 * 7 / 8 * 1e9 / BETA)
