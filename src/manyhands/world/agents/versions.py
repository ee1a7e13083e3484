"""Caller and ranks are one program on several hosts: what travels between them by value needs the same versions."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch

from ...errors import BadInput


def versions() -> dict[str, str]:
    """Of what decides whether one end understands the other."""
    from manyhands import __version__

    return {
        "Python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "manyhands": __version__,
        "torch": torch.__version__,
    }


def same_versions(host: str, theirs: Mapping[str, str]) -> None:
    """Refuse a host that has others."""
    for name, ours in versions().items():
        if theirs[name] != ours:
            raise BadInput(f"{host} has {name} {theirs[name]} but this machine has {ours}; install the same on both")
