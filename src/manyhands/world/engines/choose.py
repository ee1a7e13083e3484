"""From what the user calls an engine to the engine: `opened("slurm:nodes=2")`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

from ...errors import BadInput, did_you_mean
from ..launch.fork_server import warm_up
from ..torchrun_variables import started_by_torchrun
from .cluster import Cluster
from .engine import Engine
from .local import Local
from .remote import Remote
from .torchrun import Torchrun

LOCAL = "local"
CLUSTERS = {"slurm": ("slurm", "Slurm"), "ray": ("ray", "Ray")}  # name: module, class

On = str | Cluster | Engine


@contextmanager
def opened(on: On = LOCAL, preload: tuple[str, ...] = ()) -> Iterator[Engine]:
    """The engine while the block runs; one that is already open stays open. Within torchrun it is torchrun's."""
    if isinstance(on, Engine):
        yield on
        return
    cluster = cluster_of(on)
    if started_by_torchrun():
        if cluster is not None:
            raise BadInput(f"torchrun has started this process as one of its ranks; leave out --on {cluster.name}")
        yield Torchrun()
        return
    if cluster is None:
        warm_up(preload)  # its process imports torch beside us while we build the job
        yield Local()
        return
    with cluster.connected(), closing(Remote(cluster)) as engine:
        yield engine


def cluster_of(on: On) -> Cluster | None:
    """The cluster that is meant; None for this host."""
    if isinstance(on, Cluster):
        return on
    if not isinstance(on, str):
        raise BadInput(f"on must be local, slurm, ray, mh.Slurm(...) or mh.Ray(...) (found {on!r})")
    name, _, options = on.partition(":")
    if name == LOCAL and not options:
        return None
    if name not in CLUSTERS:
        raise BadInput(f'no engine named "{on}"{did_you_mean(name, [LOCAL, *CLUSTERS])}')
    module, kind = CLUSTERS[name]
    made: type[Cluster] = getattr(import_module(f".{module}", __package__), kind)
    return made(**_options(made, name, options))


def _options(kind: type[Cluster], name: str, text: str) -> dict[str, Any]:
    """`nodes=2,partition=gpu` as keywords. A list is written as words: `extra=--gres=gpu:4 --exclusive`."""
    fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if key not in fields or not equals:
            raise BadInput(f'--on {name} has no option "{part}"{did_you_mean(key, fields)}')
        found[key] = _value(str(fields[key].type), value, f"--on {name}:{part}")
    return found


def _value(kind: str, text: str, where: str) -> Any:
    try:
        if "int" in kind:
            return int(text)
        if "float" in kind:
            return float(text)
    except ValueError:
        raise BadInput(f"{where}: a number is expected (found {text})") from None
    return tuple(shlex.split(text)) if "tuple" in kind else text
