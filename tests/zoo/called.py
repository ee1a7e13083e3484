"""Models as people write their forwards: several arguments, arguments by name, losses of their own; each a task.

`python -m tests.zoo.called` prints the matrix of all of them under all strategies.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyhands as mh
from tests.conftest import importing
from tests.zoo.brought import SETTINGS, STRATEGIES, judged

SAMPLES = 64
SGD = partial(torch.optim.SGD, lr=0.05)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(seed))


def tokens(seed: int, length: int, most: int = 40) -> Tensor:
    return torch.randint(3, most, (SAMPLES, length), generator=torch.Generator().manual_seed(seed))


A, B, NUMBERS = draw(0, 12), draw(1, 12), draw(2)
WORDS, OTHER_WORDS, CLASSES = tokens(3, 9), tokens(4, 7), torch.arange(SAMPLES) % 4
LENGTHS = 3 + torch.arange(SAMPLES) * 5 % 7
MASK = (torch.arange(9)[None] < LENGTHS[:, None]).long()
PADDED = WORDS.masked_fill(MASK == 0, -100)
Pair = namedtuple("Pair", ("left", "right"))


@dataclass
class Both:
    left: Any
    right: Any


CASES: dict[str, Callable[[], mh.Task]] = {}


def case(name: str, train: Any, call: str, loss: Any = None, **rest: Any) -> Callable[[Any], Any]:
    """A model's task; `call` is what must be found by itself."""

    def add(model: Any) -> Any:
        def make() -> mh.Task:
            return mh.Task(model=model, train=train, loss=loss, optimizer=SGD, batch_size=8, name=name, **rest)

        CASES[name], CALLS[name] = make, call
        return model

    return add


CALLS: dict[str, str] = {}


class Twin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 1)

    def compare(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head((self.body(left) - self.body(right)).abs()).squeeze(1)


@case("two arguments", ((A, B), NUMBERS), "args", F.mse_loss)
@case("a named tuple", (Pair(A, B), NUMBERS), "kwargs", F.mse_loss)
@case("a dataclass", (Both(A, B), NUMBERS), "kwargs", F.mse_loss)
@case("names in another order", ({"right": B, "left": A}, NUMBERS), "kwargs", F.mse_loss)
class Siamese(Twin):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.compare(left, right)


@case("any number of arguments", ((A, B, A), NUMBERS), "args", F.mse_loss)
class AnyNumber(Twin):
    def forward(self, *inputs: Tensor) -> Tensor:
        return sum((self.compare(inputs[0], other) for other in inputs[1:]), torch.zeros(()))


@case("any names", ({"left": A, "right": B}, NUMBERS), "kwargs", F.mse_loss)
class AnyName(Twin):
    def forward(self, **batch: Tensor) -> Tensor:
        return self.compare(batch["left"], batch["right"])


@case("a dictionary as one", ({"left": A, "right": B}, NUMBERS), "one", F.mse_loss)
class Dictionary(Twin):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.compare(batch["left"], batch["right"])


@case("a keyword with a default", (A, NUMBERS), "one", F.mse_loss)
class Scaled(Twin):
    def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
        return self.head(self.body(x)).squeeze(1) * scale


@case("a loss that is the output", ((A, B, NUMBERS), None), "args")
class LossAlone(Twin):
    def forward(self, left: Tensor, right: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(self.compare(left, right), wanted)


@case("a loss in a dictionary", ({"left": A, "right": B, "wanted": NUMBERS}, NUMBERS), "kwargs")
class LossInside(Twin):
    def forward(self, left: Tensor, right: Tensor, wanted: Tensor | None = None) -> dict[str, Any]:
        found = self.compare(left, right)
        return {"found": found, "loss": None if wanted is None else F.mse_loss(found, wanted), "kind": "twin"}


@case("None among the arguments", ((A, None, B), NUMBERS), "args", F.mse_loss)
class Optional(Twin):
    def forward(self, left: Tensor, mask: Tensor | None, right: Tensor) -> Tensor:
        return self.compare(left if mask is None else left * mask, right)


@case("torch's Transformer", ((draw(5, 6, 8), draw(6, 5, 8)), draw(7, 5, 8)), "args", F.mse_loss)
def transformer() -> nn.Module:
    return nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)


@case(
    "torch's attention", ((draw(5, 6, 8),) * 3, draw(7, 6, 8)), "args", lambda out, wanted: F.mse_loss(out[0], wanted)
)
def attention() -> nn.Module:
    return nn.MultiheadAttention(8, 2, batch_first=True)


# ---------------------------------------------------------------- transformers, tiny and with random weights

SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CALM: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 4}
TEXT: dict[str, Any] = {"vocab_size": 40, "max_position_embeddings": 32}
LM = {"input_ids": WORDS, "attention_mask": torch.ones_like(WORDS), "labels": WORDS}
SORTED = {"input_ids": WORDS, "attention_mask": MASK, "labels": CLASSES}


def brought(name: str, inputs: dict[str, Tensor], **config: Any) -> None:
    """A model of transformers by its name, with its own loss."""

    def make() -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        model: nn.Module = kind(kind.config_class(**config))
        return model

    case(f"{name}", (inputs, inputs["labels"]), "kwargs")(make)


GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 32}
brought("GPT2LMHeadModel", LM, **GPT2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
brought("BertForSequenceClassification", SORTED, **SMALL, **CALM, **TEXT)
brought("BertForMaskedLM", {**SORTED, "labels": PADDED}, **SMALL, **CALM, **TEXT)
brought("LlamaForCausalLM", LM, **SMALL, **TEXT, num_key_value_heads=1)
brought("MixtralForCausalLM", LM, **SMALL, **TEXT, num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2)
brought("ViTForImageClassification", {"pixel_values": draw(8, 3, 16, 16), "labels": CLASSES}, **SMALL, **CALM, image_size=16, patch_size=8)  # fmt: skip
brought("DistilBertForSequenceClassification", SORTED, vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=32, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=4)  # fmt: skip
brought("T5ForConditionalGeneration", {"input_ids": WORDS, "attention_mask": MASK, "labels": OTHER_WORDS}, vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0)  # fmt: skip


@cache
def by_single(name: str) -> mh.Run:
    run = mh.fit(CASES[name](), "single", **SETTINGS)  # type: ignore[arg-type]
    assert run.call == CALLS[name]
    return run


def judge(name: str, strategy: str) -> str:
    return judged(CASES[name](), by_single(name).weights or {}, strategy)


if __name__ == "__main__":
    with importing("transformers.models.gpt2.modeling_gpt2"):
        for name in sys.argv[1:] or CASES:
            for strategy in STRATEGIES:
                print(f"{name:36} {strategy:24} {judge(name, strategy)}", flush=True)
