"""torch's optimizers without torch's compiler: the same updates, and over a second less before the first of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch
from manyhands.model.without_compiler import make_without_compiler, step_without_compiler
{before}
weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
optimizer = torch.optim.{name}([weight], lr=0.1)
for round in range(3):
    optimizer.zero_grad()
    (weight ** 3).sum().backward()
    optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules, torch.is_grad_enabled(), weight.double().sum().item().hex())
{after}
"""


def _outcome(name: str, before: str, after: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(name=name, before=before, after=after)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop"])
def test_an_optimizer_steps_as_before_and_brings_no_compiler(name: str) -> None:
    """Every rank, and every caller, once waited over a second for a compiler that nobody had asked for."""
    assert _outcome(name, "step_without_compiler()") == ["False", "True", _outcome(name, "")[2]]


def test_those_who_compile_get_torchs_own_way() -> None:
    """What is left out before the compiler is there is told to it as soon as it is."""
    told = """
from torch.optim import Optimizer
import torch._dynamo
optimizer.zero_grad()
mark = getattr(Optimizer.zero_grad.__wrapped__, "__dynamo_disable")
print(mark.__module__.startswith("torch."), getattr(mark, "_torchdynamo_disable", None))
optimizer.step()
"""
    assert _outcome("SGD", "step_without_compiler()", told)[3:] == ["True", "True"]
