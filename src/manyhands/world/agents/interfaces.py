"""Addresses of this host, and the network interface that has one of them."""

from __future__ import annotations

import socket

import psutil

LOOPBACK = "127.0.0.1"


def interface_of(address: str) -> str | None:
    """The name of the interface with this address; gloo wants it by name, and would else take whatever the host's name
    resolves to, which on many machines is loopback."""
    for name, found in psutil.net_if_addrs().items():
        if any(item.address == address for item in found):
            return str(name)
    return None


def own_addresses() -> list[str]:
    """IPv4 addresses by which others may reach this host, the likeliest first, loopback last."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        item.address
        for name, items in psutil.net_if_addrs().items()
        for item in items
        if name in up and item.family == socket.AF_INET and not item.address.startswith("127.")
    ]
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = ""
    return [*sorted(found, key=lambda address: address != named), LOOPBACK]
