"""What one rank of a script computes, written down update by update: the side of `manyhands verify` inside the script.

An order names the script, how many updates to watch, and what to change from outside. When that many updates were made
the rest of the run is hurried through (every pass over the data ends after one update), so that the passes after the
first are seen too and the number of epochs is known. What was seen goes to two files: names and figures as JSON, tensors
(a sample of the coordinates of each) as arrays.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .changes import Changes
from .patches import Patches
from .rank import described, exit_code, run_as_main
from .witness_data import Data
from .witness_rates import Rates
from .witness_updates import Updates

PEERS_SECONDS = 20.0  # to wait for the others before leaving: a rank that leaves breaks their collectives
MOST_PASSES = 100
FRAMEWORKS = ("lightning", "pytorch_lightning", "accelerate", "transformers", "deepspeed", "horovod")


class Witness:
    """All that is seen on this rank."""

    def __init__(self, order: dict[str, Any], rank: int):
        self.rank, self.ranks = rank, int(order["ranks"])
        self.steps: int = order["steps"]
        self.folder = Path(order["folder"])
        self.hurries: bool = order["hurries"]
        self.hurry_until = 0.0  # 0: the updates that are watched are still being made
        self.hurry_seconds: float = order["hurry_seconds"]
        self.process = os.getpid()
        self.patches = Patches()
        self.world: dict[str, Any] = {"group": False, "spawns": None, "collectives": 0}
        self.changes = Changes(self, order["changes"])
        self.data = Data(self)
        self.rates = Rates(self)
        self.updates = Updates(self)
        self._watch_start()

    @property
    def hurrying(self) -> bool:
        return self.hurry_until > 0

    def update_made(self, count: int) -> None:
        """Called after each update: is it enough?"""
        if count < self.steps:
            return
        if not self.hurrying:
            self.write(None)
            self.hurry_until = time.monotonic() + self.hurry_seconds
            if not self.hurries or not self.data.trained:
                self.leave()
        elif time.monotonic() > self.hurry_until or self.data.passes_made > MOST_PASSES:
            self.leave()

    def leave(self) -> None:
        """End this process here, as soon as the other ranks have seen enough too."""
        self.write(None)
        (self.folder / f"done{self.rank}").touch()
        limit = time.monotonic() + PEERS_SECONDS
        while time.monotonic() < limit:
            if all((self.folder / f"done{rank}").exists() for rank in range(self.ranks)):
                break
            time.sleep(0.01)
        os._exit(0)

    def write(self, failure: dict[str, Any] | None, ended: bool = False) -> None:
        import numpy

        facts = {
            "failure": failure,
            "ended": ended,  # the script came to its own end
            "frameworks": [name for name in FRAMEWORKS if name in sys.modules],
            **self.world,
            **self.data.facts(),
            **self.rates.facts(),
            **self.updates.facts(),
        }
        with open(self.folder / f"rank{self.rank}.npz.part", "wb") as file:
            numpy.savez(file, **self.updates.arrays)
        (self.folder / f"rank{self.rank}.json.part").write_text(json.dumps(facts))
        for kind in ("npz", "json"):
            os.replace(self.folder / f"rank{self.rank}.{kind}.part", self.folder / f"rank{self.rank}.{kind}")

    def _watch_start(self) -> None:
        """How ranks find each other: with the address they were given, whatever the script says."""
        import torch.distributed as dist
        import torch.multiprocessing as processes

        address = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT")}

        def joining(original: Any) -> Any:
            def join(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> Any:
                size = kwargs.get("world_size", -1)
                if size not in (-1, None, self.ranks):
                    raise RuntimeError(f"the script asks for {size} ranks, and {self.ranks} were started")
                os.environ.update(address)
                self.world["group"] = True
                init_method = None if init_method and str(init_method).startswith("tcp:") else init_method
                return original(backend, init_method, *args, **kwargs)

            return join

        self.patches.wrap(dist, "init_process_group", joining)

        def spawning(original: Any) -> Any:
            def spawn(function: Any, args: Any = (), nprocs: int = 1, *rest: Any, **kwargs: Any) -> Any:
                """This process is one of those ranks already."""
                self.world["spawns"] = nprocs
                if nprocs != self.ranks:
                    raise RuntimeError(f"the script starts {nprocs} ranks itself, and {self.ranks} were started")
                function(self.rank, *args)

            return spawn

        for name in ("spawn", "start_processes"):
            self.patches.wrap(processes, name, spawning)
        for name in ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast"):
            self.patches.wrap(dist, name, self._counting)

    def _counting(self, original: Any) -> Any:
        def count(*args: Any, **kwargs: Any) -> Any:
            self.world["collectives"] += 1
            return original(*args, **kwargs)

        return count


def witness(order: dict[str, Any], rank: int) -> int:
    """Run the script of the order as this rank; returns the exit code."""
    seen = Witness(order, rank)
    code, failure = 0, None
    try:
        run_as_main(order["command"])
    except SystemExit as leaving:
        code = exit_code(leaving.code)
        failure = {"line": f"exit code {code}", "traceback": ""} if code else None
    except BaseException as problem:
        failure, code = described(problem), 1
    if os.getpid() != seen.process:
        return code
    if seen.hurrying:  # what a hurried script stumbles over is no fault of its own
        code, failure = 0, None
    seen.write(failure, ended=failure is None)
    (seen.folder / f"done{rank}").touch()
    return code
