"""Checkpoints: one folder that any strategy with any number of ranks writes and reads.

    checkpoints/step-00000200/
        model.safetensors       weights by name
        optimizer.safetensors   tensors of the optimizer and the schedule, by parameter name
        history.safetensors     losses and times of the steps so far
        state.json              everything else: position, options, task; tensors are named, not held
        manifest.json           size and SHA-256 of the files above; written last

A checkpoint is written into a folder of another name, synced to the disk and published by a rename, so a
half-written one is never seen. One that was cut or changed afterwards does not match its manifest and is passed
over for the one before it. Nothing is pickled: reading a checkpoint cannot run code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
TENSOR_FILES = {"weights": "model.safetensors", "state": "optimizer.safetensors", "history": "history.safetensors"}
FILES = (*TENSOR_FILES.values(), STATE)
PLAIN = ("step", "epoch", "number", "strategy", "ranks", "task")  # what of it stands in STATE as it is
CONDITIONS = "conditions"  # the key under which a checkpoint of a task keeps what may differ (conditions.py)


@dataclass
class Checkpoint:
    """Everything a fit needs to go on: where it was, the weights, the optimizer, and what was measured so far."""

    step: int  # steps done since the beginning
    epoch: int  # the epoch that goes on, from 0
    number: int  # steps of that epoch already done
    weights: dict[str, Tensor]
    state: dict[str, Any]  # optimizer, schedule and updates, as `Worker.state` gives them
    history: dict[str, Any]
    task: dict[str, Any]  # see `fingerprint`
    strategy: str
    ranks: int
    path: Path | None = field(default=None, compare=False)


def manifest(sums: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The text of a manifest: only one that is this to the byte is whole."""
    own = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()
    return json.dumps({"format": FORMAT, "files": sums, "sha256": own}, indent=1, sort_keys=True).encode()


def published(folder: Path) -> list[Path]:
    """The checkpoints under a folder, newest first."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal()), key=step_of, reverse=True)


def step_of(path: Path) -> int:
    return int(path.name[5:])
