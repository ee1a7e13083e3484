"""How long exchanges between hosts take by the alpha-beta model, in closed form.

A message of b bytes takes alpha + b / beta: alpha is the link's latency, beta its bandwidth. Every host sends and receives
at once, one message at a time, and nobody else uses the network. One host exchanges nothing, in no time.
"""

from __future__ import annotations

from .link import Link


def ring_all_reduce(hosts: int, size: float, link: Link) -> float:
    """2 (n-1) alpha + 2 (n-1)/n bytes/beta: a reduce-scatter around the ring, then an all-gather."""
    return reduce_scatter(hosts, size, link) + all_gather(hosts, size, link)


def tree_all_reduce(hosts: int, size: float, link: Link) -> float:
    """2 ceil(log2 n) (alpha + bytes/beta): whole messages up a binomial tree to one host, then down again."""
    return 2 * (hosts - 1).bit_length() * (link.seconds + size / link.bytes_per_second)


def all_reduce(hosts: int, size: float, link: Link) -> float:
    """The quicker of ring and tree, as communication libraries choose: many hosts and few bytes favour the tree."""
    return min(ring_all_reduce(hosts, size, link), tree_all_reduce(hosts, size, link))


def all_gather(hosts: int, size: float, link: Link) -> float:
    """(n-1) alpha + (n-1)/n bytes/beta, where `size` is that of the gathered whole."""
    return (hosts - 1) * (link.seconds + size / hosts / link.bytes_per_second)


def reduce_scatter(hosts: int, size: float, link: Link) -> float:
    """(n-1) alpha + (n-1)/n bytes/beta: an all-gather backwards, with sums."""
    return all_gather(hosts, size, link)


def hierarchical_all_reduce(hosts: int, size: float, link: Link, within_host_seconds: float) -> float:
    """within + 2 (h-1) alpha + 2 (h-1)/h bytes/beta: ranks of a host agree first, then a ring of hosts.

    `within_host_seconds` covers both ends of it: the reduction within each host before the ring and the spreading after.
    """
    return within_host_seconds + ring_all_reduce(hosts, size, link)


def exchange_with_servers(hosts: int, size: float, link: Link) -> float:
    """2 alpha + 2 (h-1)/h bytes/beta: gradients out and weights back, with the servers spread evenly over the hosts.

    Nobody waits for a round of others, so latency does not grow with the hosts. But each host also serves the others, which
    takes as many bytes as a ring does.
    """
    if hosts == 1:
        return 0.0
    return 2 * link.seconds + 2 * (hosts - 1) / hosts * size / link.bytes_per_second
