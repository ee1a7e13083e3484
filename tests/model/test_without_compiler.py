"""torch's optimizers without torch's compiler: the same updates, and over a second less before the first of them."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, torch
from manyhands.model.without_compiler import step_without_compiler
if sys.argv[1] == "without":
    step_without_compiler()
for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
    optimizer = kind([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (weight ** 3).sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.is_grad_enabled()
    print(kind.__name__, weight.detach().double().sum().item().hex())
print("torch._dynamo" in sys.modules, file=sys.stderr)
import torch._dynamo
optimizer.zero_grad()
optimizer.step()
mark = getattr(torch.optim.Optimizer.zero_grad.__wrapped__, "__dynamo_disable")
print(mark.__module__.startswith("torch."), file=sys.stderr)
"""


def _outcome(how: str) -> tuple[str, list[str]]:
    """The weights, whether the compiler was imported for them, and whether it is told of them once it is there."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, how], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout, done.stderr.split()


def test_optimizers_step_as_before_and_bring_no_compiler() -> None:
    """Every rank, and every caller, once waited over a second for a compiler that nobody had asked for."""
    weights, (imported, told) = _outcome("without")
    assert weights == _outcome("with")[0]
    assert imported == "False"
    assert told == "True"  # those who compile get torch's own way
