"""Models of transformers, tiny and with random weights: their outputs are objects, their layers are found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyhands as mh
from tests.conftest import importing

transformers = pytest.importorskip("transformers", reason="transformers is not installed (an extra for development)")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code

TOKENS = torch.randint(3, 50, (32, 10), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 5, (32,), generator=torch.Generator().manual_seed(2))
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = {"vocab_size": 50, "max_position_embeddings": 32}
CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 5}


class Called(nn.Module):
    """A model of transformers, which wants its input by name."""

    def __init__(self, make: Callable[[Any], nn.Module], name: str):
        super().__init__()
        self.inner, self.name = make(transformers), name

    def forward(self, x: Tensor) -> Any:
        return self.inner(**{self.name: x})


def gpt2(T: Any, dropout: float = 0.0) -> nn.Module:
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 32, "use_cache": False}
    return T.GPT2LMHeadModel(T.GPT2Config(**sizes, **drops))


def bert(T: Any) -> nn.Module:
    return T.BertForSequenceClassification(T.BertConfig(**SMALL, **WORDS, **CALM))


def mixtral(T: Any) -> nn.Module:
    experts = {"num_key_value_heads": 1, "num_local_experts": 3, "num_experts_per_tok": 2, "use_cache": False}
    return T.MixtralForCausalLM(T.MixtralConfig(**SMALL, **WORDS, **experts))


def vit(T: Any) -> nn.Module:
    return T.ViTForImageClassification(T.ViTConfig(**SMALL, **CALM, image_size=16, patch_size=4))


def task_of(make: Callable[[Any], nn.Module]) -> mh.Task:
    images = make is vit
    return mh.Task(
        model=partial(Called, make, "pixel_values" if images else "input_ids"),
        train=(IMAGES if images else TOKENS, LABELS),
        loss=lambda out, label: F.cross_entropy(out.logits if out.logits.dim() == 2 else out.logits.mean(1), label),
        optimizer=partial(torch.optim.SGD, lr=0.05),
        batch_size=8,
    )


@pytest.fixture(scope="module", autouse=True)
def _imported_once() -> Iterator[None]:
    """The library is large: by the fork server, not by every rank."""
    with importing("transformers.models.gpt2.modeling_gpt2"):
        yield


def trained(task: mh.Task, strategy: str) -> mh.Run:
    ranks = {} if strategy == "single" else {"ranks": 2}
    return mh.fit(task, strategy, max_steps=3, threads=1, progress=False, **ranks)  # type: ignore[arg-type]


SAMPLE = [(gpt2, "ddp"), (gpt2, "pipeline")]
ALL = [
    (make, name)
    for make in (gpt2, bert, mixtral, vit)
    for name in ("ddp", "fsdp", "pipeline", "data_parallel", "locked")
]


@pytest.mark.parametrize(
    ("make", "strategy"),
    [*SAMPLE, *(pytest.param(*pair, marks=pytest.mark.soak) for pair in ALL if pair not in SAMPLE)],
)
def test_they_train_as_under_single(make: Callable[[Any], nn.Module], strategy: str) -> None:
    task = task_of(make)
    single, run = trained(task, "single"), trained(task, strategy)
    assert run.exact is True, run.exact_reason
    for name, weight in single.weights.items():
        assert torch.allclose(weight, run.weights[name], rtol=1e-4, atol=1e-6), name


def test_their_dropout_is_seen() -> None:
    run = trained(task_of(partial(gpt2, dropout=0.1)), "ddp")
    assert run.exact is False
    assert "random numbers (dropout and the like) are drawn in Dropout (inner.transformer.drop)" in str(
        run.exact_reason
    )
