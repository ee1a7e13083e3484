"""Models with several arguments and losses of their own, under every strategy: equal to single, inexact for a reason, or refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import manyhands as mh
from manyhands.model.program import Form
from manyhands.strategies.job import StepSettings
from manyhands.strategies.pieces.cut_model import cut_model
from manyhands.training.build import build
from tests.conftest import importing
from tests.zoo.brought import STRATEGIES
from tests.zoo.called import CASES, judge

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code
OF_TRANSFORMERS = [name for name in CASES if "For" in name or "Model" in name]
OWN = [name for name in CASES if name not in OF_TRANSFORMERS]
SAMPLE = [
    *((name, STRATEGIES[number % len(STRATEGIES)]) for number, name in enumerate(OWN)),
    ("two arguments", "pipeline"),
    ("a loss in a dictionary", "pipeline"),
    ("a loss in a dictionary", "data_parallel"),
]
WANTED = {"reason": "transformers is not installed (an extra for development)"}


@pytest.mark.parametrize(("name", "strategy"), SAMPLE[::2])  # all of it with the matrix (soak)
def test_a_sample_of_the_matrix(name: str, strategy: str) -> None:
    assert not judge(name, strategy).startswith("refused")


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "DistilBertForSequenceClassification"])
def test_models_of_transformers_are_cut_with_their_losses(name: str) -> None:
    """A loss made in the forward, caches in the output and a shape kept to the end: none may stop a cut in the middle."""
    pytest.importorskip("transformers", **WANTED)
    job = build(CASES[name](), StepSettings())
    pieces = cut_model(mh.Pipeline(ranks=2), job, 2, "parameters")
    assert not pieces.program.hidden
    assert [wire.form for wire in pieces.wires(2)] == [Form((), torch.float32)]
    assert pieces.bounds[1] < 0.7 * pieces.bounds[2]


@pytest.fixture
def _imported_once() -> Iterator[None]:
    """The library is large: by the fork server, not by every rank."""
    with importing("transformers.models.gpt2.modeling_gpt2"):
        yield


@pytest.mark.soak
@pytest.mark.usefixtures("_imported_once")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", CASES)
def test_the_whole_matrix(name: str, strategy: str) -> None:
    if name in OF_TRANSFORMERS:
        pytest.importorskip("transformers", **WANTED)
    found = judge(name, strategy)
    assert not found.startswith("refused"), found
