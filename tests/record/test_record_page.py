"""docs/run-json.md describes every field of the record, and nothing else."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import manyhands as mh
from tests.conftest import ROOT, make_task, quick_fit

# Keys that a short fit on CPU ranks has no reason to write: a GPU, a failure, a rank that is slow, rounds, a forecast.
SELDOM = ("capture.", "faults[].", "usage.", "slow_rank.", "resumed_from.", "whole_fit.", "forecast.")
FREE = (
    "options.",
    "test.per_class.",
    "epochs[].test_",
    "per_rank[].phases_ms.",
    "per_rank[].cpu_ms.",
    "round_phases_ms",
)
AS_ELSEWHERE = ("servers[].phases_ms.", "servers[].cpu_ms.", "ema.test.")  # described for ranks, and for `test`


def described() -> set[str]:
    rows = re.findall(r"^\| (`.*?`) \| ", (ROOT / "docs" / "run-json.md").read_text(), flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def keys(value: Any, above: str = "") -> Iterator[str]:
    """Every key of nested data, as the page writes it: `a.b`, and `a[].b` for the entries of a list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield above + key
            yield from keys(inner, f"{above}{key}[]." if isinstance(inner, list) else f"{above}{key}.")
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, above)


def test_every_field_of_a_run_is_described_and_no_other() -> None:
    whole = {name for name in described() if not re.search(r"[.\[]", name)}
    assert whole == {field.name for field in dataclasses.fields(mh.Run)}


def test_every_key_of_real_records_is_described_and_no_other() -> None:
    task = make_task(ema=0.9)
    names = ("single", "ddp", "hogwild", "parameter_server", "data_parallel")
    runs = [quick_fit(task, name, ranks=1 if name == "single" else 2, max_steps=6) for name in names]
    seen = {key for run in runs for key in keys(run.record()) if not key.startswith((*FREE, *AS_ELSEWHERE))}
    told = {name for name in described() if not name.startswith(FREE)}
    assert seen - told == set()
    assert {name for name in told - seen if not name.startswith(SELDOM)} == set()
