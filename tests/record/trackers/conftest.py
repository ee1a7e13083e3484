"""Real trackers in their offline modes: nothing reaches a network, and each test has stores of its own."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    go_offline(monkeypatch, tmp_path)


def go_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")


class OfflineRun:
    """What an offline run of wandb's holds, read back from its file.

    A process of wandb's own writes it, which may still do so when `finish` has returned: read at once, the end was missing.
    """

    def __init__(self, folder: Path):
        [file] = folder.glob("wandb/offline-run-*/run-*.wandb")
        until = time.monotonic() + 30
        while not any(record.WhichOneof("record_type") == "exit" for record in _records(file)):
            assert time.monotonic() < until, "wandb has not written the end of its run"
            time.sleep(0.1)
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.artifacts: list[str] = []
        self.group, self.exit_code = "", None
        for record in _records(file):
            kind = record.WhichOneof("record_type")
            if kind in ("run", "config"):
                config = record.run.config if kind == "run" else record.config
                self.config |= {item.key: json.loads(item.value_json) for item in config.update}
                self.group = record.run.run_group or self.group
            elif kind == "summary":
                for item in record.summary.update:
                    self.summary["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
            elif kind == "history":
                row = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
                }
                self.history.append(row)
            elif kind == "artifact":
                self.artifacts += [entry.path for entry in record.artifact.manifest.contents]
            elif kind == "exit":
                self.exit_code = record.exit.exit_code


def _records(file: Path) -> Iterator[Any]:
    """The file is a log of blocks of 32 KiB after 7 bytes: checksum, length and kind, then (a part of) a record."""
    from wandb.proto import wandb_internal_pb2

    content, place, whole = file.read_bytes(), 7, b""
    while place < len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a record in one piece, or its last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record
