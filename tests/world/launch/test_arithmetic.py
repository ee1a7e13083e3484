"""Ranks compute with the switches of the caller's torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys, torch
from manyhands.world.launch.arithmetic import arithmetic
from manyhands.world.launch.processes import launch
{set}
before = arithmetic()
found = launch(lambda process: arithmetic(), 1)[0]
print(json.dumps({{"same": found == before == arithmetic(), "found": {{k: str(v) for k, v in found.items()}}}}))
"""


@pytest.mark.parametrize(
    ("set", "expected"),
    [
        (
            "torch.backends.cudnn.allow_tf32 = False; torch.set_float32_matmul_precision('high'); "
            "torch.use_deterministic_algorithms(True, warn_only=True); torch.set_default_dtype(torch.float64); "
            "torch.backends.cudnn.benchmark = True",
            {
                "cudnn.allow_tf32": "False",
                "matmul precision": "high",
                "deterministic": "(True, True)",
                "default dtype": "torch.float64",
                "cudnn.benchmark": "True",
            },
        ),
        (
            "torch.backends.cudnn.conv.fp32_precision = 'ieee'; torch.backends.cuda.matmul.fp32_precision = 'tf32'",
            {"cudnn.conv.fp32_precision": "ieee", "cuda.matmul.fp32_precision": "tf32"},
        ),
    ],
    ids=["older names", "newer names"],
)
def test_what_the_caller_asked_of_torch_holds_on_the_ranks(set: str, expected: dict[str, str]) -> None:
    """A script's TF32, deterministic kernels and default type were once left behind in the caller."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(set=set)], capture_output=True, text=True, timeout=60, check=True
    )
    answer = json.loads(done.stdout)
    assert answer["same"], answer
    assert expected.items() <= answer["found"].items()
