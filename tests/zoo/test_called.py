"""Models with several arguments and losses of their own, under every strategy: equal to single, inexact for a reason, or refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import importing
from tests.zoo.brought import STRATEGIES
from tests.zoo.called import CASES, judge

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code
OF_TRANSFORMERS = [name for name in CASES if "For" in name or "Model" in name]
OWN = [name for name in CASES if name not in OF_TRANSFORMERS]
CUT = ("model_parallel", "pipeline", "hybrid")
SAMPLE = [
    *((name, STRATEGIES[number % len(STRATEGIES)]) for number, name in enumerate(OWN)),
    ("two arguments", "pipeline"),
    ("a loss in a dictionary", "pipeline"),
    ("a loss in a dictionary", "data_parallel"),
    ("T5ForConditionalGeneration", "pipeline"),
]


@pytest.fixture(scope="module", autouse=True)
def _imported_once() -> Iterator[None]:
    """The library is large: by the fork server, not by every rank."""
    with importing("transformers.models.gpt2.modeling_gpt2"):
        yield


def verdict(name: str, strategy: str) -> str:
    if name in OF_TRANSFORMERS:
        pytest.importorskip("transformers", reason="transformers is not installed (an extra for development)")
    return judge(name, strategy)


@pytest.mark.parametrize(("name", "strategy"), SAMPLE)
def test_a_sample_of_the_matrix(name: str, strategy: str) -> None:
    assert not verdict(name, strategy).startswith("refused")


@pytest.mark.soak
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", CASES)
def test_the_whole_matrix(name: str, strategy: str) -> None:
    found = verdict(name, strategy)
    assert not found.startswith("refused"), found
