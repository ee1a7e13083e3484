"""Code that people bring trains as it is under every strategy: equal to single, inexact for a reason, or refused with one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import importing
from tests.zoo.brought import CASES, STRATEGIES, judge

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code
NEEDS = {"gpt2": "transformers", "padded_gpt2": "transformers", "bert": "transformers", "timm_vit": "timm"}
NEEDS["lightning_module"] = "lightning"
SAMPLE = [(case, STRATEGIES[3 * number % len(STRATEGIES)]) for number, case in enumerate(CASES)]


@pytest.fixture(scope="module", autouse=True)
def _imported_once() -> Iterator[None]:
    """The library is large: by the fork server, not by every rank."""
    with importing("transformers.models.gpt2.modeling_gpt2"):
        yield


def verdict(case: str, strategy: str, accumulate: int = 1) -> str:
    pytest.importorskip(NEEDS.get(case, "torch"), reason=f"{NEEDS.get(case)} is not installed", exc_type=ImportError)
    return judge(case, strategy, accumulate)


@pytest.mark.parametrize(("case", "strategy"), SAMPLE[::2])  # all of it with the matrix (soak)
def test_a_sample_of_the_matrix(case: str, strategy: str) -> None:
    assert verdict(case, strategy)


@pytest.mark.parametrize(("strategy", "accumulate"), [("ddp", 1), ("pipeline", 1), ("ddp", 3)])
def test_a_padded_causal_model_is_exact(strategy: str, accumulate: int) -> None:
    assert verdict("padded_gpt2", strategy, accumulate).startswith("equal")


@pytest.mark.soak
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES)
def test_the_whole_matrix(case: str, strategy: str) -> None:
    assert verdict(case, strategy)
