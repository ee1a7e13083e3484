"""What Hugging Face's Trainer takes becomes a Task that trains to the same weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from tests.conftest import importing, quick_fit

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 30}
CONFIG = transformers.BertConfig(**SIZES, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
MODEL = partial(transformers.BertForSequenceClassification, CONFIG)


@pytest.fixture(scope="module", autouse=True)
def _imported_once() -> Any:
    """The library is large: by the fork server, not by every rank."""
    with importing("transformers.models.bert.modeling_bert", "transformers.trainer"):
        yield


def sentences(count: int = 24) -> list[dict[str, Any]]:
    """Rows of different lengths, with a column that no model takes."""
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(1, 30, (3 + number % 4,), generator=draw).tolist() for number in range(count)]
    return [{"input_ids": row, "label": row[0] % 2, "text": "not taken"} for row in rows]


def padded(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = torch.tensor([sample["label"] for sample in samples])
    assert all("text" not in sample for sample in samples)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def arguments(folder: Any = "unused", **changes: Any) -> Any:
    quiet = {
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return transformers.TrainingArguments(str(folder), **{**quiet, "per_device_train_batch_size": 24, **changes})


def test_twenty_steps_of_trainer(tmp_path: Any) -> None:
    """A batch is all there is, so that the order does not matter. Trainer clips by default: fit_settings says so."""
    args = arguments(
        tmp_path, num_train_epochs=20, learning_rate=1e-3, warmup_steps=4, lr_scheduler_type="cosine", weight_decay=0.1
    )
    task = mh.from_transformers(MODEL, sentences(), padded, args)
    assert mh.fit_settings(args) == {"device": "cpu", "clip": 1.0}
    run = quick_fit(task, **mh.fit_settings(args))
    torch.manual_seed(args.seed)
    model = MODEL()
    transformers.Trainer(model, args, padded, sentences()).train()
    assert run.weights is not None
    assert len(run.losses) == 20
    assert max(float((run.weights[name] - value).abs().max()) for name, value in model.state_dict().items()) < 1e-5


def accuracy(prediction: Any) -> dict[str, float]:
    assert prediction.predictions.shape == (24, 2)
    return {"right": float(np.mean(prediction.predictions.argmax(1) == prediction.label_ids))}


def test_compute_metrics_sees_all_predictions_at_once() -> None:
    args = arguments(per_device_eval_batch_size=7, max_steps=1)
    task = mh.from_transformers(MODEL, sentences(), padded, args, eval_dataset=sentences(), compute_metrics=accuracy)
    run = quick_fit(task, **mh.fit_settings(args))
    assert run.steps == 1
    model = MODEL()
    model.load_state_dict(run.weights)
    batch = task.collate(sentences())  # type: ignore[misc]
    right = (model.eval()(**batch).logits.argmax(1) == batch["labels"]).float().mean()
    assert run.test["right"] == pytest.approx(float(right))  # type: ignore[index]


def test_two_ranks_and_a_model_that_was_made_already() -> None:
    args = arguments(per_device_train_batch_size=8, num_train_epochs=1)
    torch.manual_seed(0)
    task = mh.from_transformers(MODEL(), sentences(), padded, args)
    one, two = quick_fit(task), quick_fit(task, "ddp", ranks=2)
    assert two.exact
    assert max(float((one.weights[name] - two.weights[name]).abs().max()) for name in one.weights) < 1e-5  # type: ignore


def test_settings_of_a_fit() -> None:
    args = arguments(gradient_accumulation_steps=3, max_steps=5, max_grad_norm=0.5, bf16=True, dataloader_num_workers=2)
    expected = {"accumulate": 3, "max_steps": 15, "clip": 0.5, "precision": "bf16", "loader_workers": 2}
    assert mh.fit_settings(args) == {"device": "cpu", **expected}
    assert mh.fit_settings(arguments(max_grad_norm=0.0)) == {"device": "cpu"}
    assert mh.from_transformers(MODEL, sentences(), padded, args).epochs == 5  # an update each


def test_weight_decay_is_grouped_as_by_trainer() -> None:
    task = mh.from_transformers(MODEL, sentences(), padded, arguments(weight_decay=0.1))
    model = MODEL()
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed, others = task.optimizer(model.named_parameters()).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert all("bias" in names[p] or "LayerNorm" in names[p] for p in others["params"])
    assert "classifier.weight" in {names[p] for p in decayed["params"]}


class Table:
    """A datasets.Dataset, as far as it matters."""

    def __init__(self, columns: dict[str, list[Any]]):
        self.columns = columns
        self.column_names = list(columns)

    def remove_columns(self, names: list[str]) -> Table:
        return Table({name: values for name, values in self.columns.items() if name not in names})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self.columns.items()}


def test_columns_that_nobody_takes_are_not_read() -> None:
    rows = sentences()
    table = Table({name: [row[name] for row in rows] for name in rows[0]})
    assert mh.from_transformers(MODEL, table, padded).train.column_names == ["input_ids", "label"]
    kept = mh.from_transformers(
        MODEL, table, lambda some: {"labels": [row["text"] for row in some]}, arguments(remove_unused_columns=False)
    )
    assert kept.train is table


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"label_smoothing_factor": 0.1},
            r"TrainingArguments\(label_smoothing_factor=0.1\) is not supported; give a loss",
        ),
        ({"optim": "adafactor"}, r'TrainingArguments\(optim="adafactor"\) is not supported .* give optimizer=...'),
        ({"lr_scheduler_type": "greedy", "eval_strategy": "epoch"}, r'lr_scheduler_type="greedy".* give schedule=...'),
        ({"dataloader_drop_last": True}, r"dataloader_drop_last=True\) is not supported; leave it out"),
        ({"num_train_epochs": 1.5}, r"num_train_epochs=1.5\) ends within an epoch; give max_steps"),
    ],
)
def test_arguments_that_would_change_the_result_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        mh.from_transformers(MODEL, sentences(), padded, arguments(**changes))


def test_an_optimizer_of_ones_own_replaces_that_of_the_arguments() -> None:
    own = partial(torch.optim.SGD, lr=0.1)
    assert (
        mh.from_transformers(MODEL, sentences(), padded, arguments(optim="adafactor"), optimizer=own).optimizer is own
    )


def test_no_labels_no_loss() -> None:
    rows = [{"input_ids": torch.tensor([1, 2, 3])}] * 4
    with pytest.raises(mh.BadInput, match=r"a batch holds no labels \(found input_ids; BertFor.* takes labels\)"):
        mh.from_transformers(MODEL, rows)
    with pytest.raises(mh.BadInput, match=r"args must be transformers.TrainingArguments \(found dict\)"):
        mh.from_transformers(MODEL, sentences(), padded, {"learning_rate": 1})
    with pytest.raises(mh.BadInput, match=r"the collator must make a dictionary .* \(found tuple\)"):
        mh.from_transformers(MODEL, sentences(), lambda rows: (1, 2))
