"""from_transformers(): a task from a Hugging Face model, a dataset of dictionaries and TrainingArguments.

What Trainer would do with them is done: the columns, the collator, AdamW with its groups, the schedule, the labels. What
belongs to a fit and not to a task (clipping, accumulation, precision) is given by fit_settings().
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import IterableDataset
from transformers.trainer_pt_utils import nested_concat, nested_detach, nested_numpify

from ..data.process_state import seeded
from ..errors import BadInput
from ..task import Task
from .training_arguments import GIVEN, Arguments, read_arguments

IGNORED_OUTPUTS = ("past_key_values",)  # of a prediction, where the model's config names none


def from_transformers(
    model: nn.Module | Callable[[], nn.Module],
    dataset: Any,
    collator: Callable[[list[Any]], Any] | None = None,
    args: Any = None,
    *,
    eval_dataset: Any = None,
    compute_metrics: Callable[[Any], Mapping[str, float]] | None = None,
    **changes: Any,
) -> Task:
    """A Task from what Trainer takes; `changes` are further fields of the Task.

    `batch_size` is args.per_device_train_batch_size: what Trainer takes per step on one device. It stays the number of
    samples of a step over ALL ranks.
    """
    asked = read_arguments(args, given=changes)
    with seeded(asked.seed):
        example = model if isinstance(model, nn.Module) else model()
    kept = _columns(example, asked)
    collate = Columns(collator or transformers.default_data_collator, kept)
    labels = _labels(collate, dataset, asked, example)
    task: dict[str, Any] = {
        "model": model,
        "train": _without(dataset, kept),
        "test": None if eval_dataset is None else _without(eval_dataset, kept),
        "collate": collate,
        "loss": None,
        "call": "kwargs",
        "target": labels[0] if len(labels) == 1 else labels,
        "optimizer": TrainerAdamW.of(example, asked),
        "schedule": TrainerSchedule(
            asked.lr_scheduler_type, asked.warmup_steps, asked.lr_scheduler_kwargs, asked.max_steps
        ),
        "batch_size": asked.per_device_train_batch_size,
        "eval_batch_size": asked.per_device_eval_batch_size,
        "epochs": _epochs(asked, dataset),
        "seed": asked.seed,
        "name": type(example).__name__,
    }
    if compute_metrics is not None:
        task["metrics"] = {"": Predictions(compute_metrics, _ignored(example))}
    return Task(**{**task, **changes})


def fit_settings(args: Any) -> dict[str, Any]:
    """What TrainingArguments say about a fit, as keywords of `mh.fit`: Trainer clips gradients at 1.0 by default."""
    return read_arguments(args, given=GIVEN.values()).settings


# ---------------------------------------------------------------- data


@dataclass(frozen=True)
class Columns:
    """A collator that is given only what the model's forward takes, and labels."""

    collator: Callable[[list[Any]], Any]
    kept: frozenset[str] | None

    def __call__(self, samples: list[Any]) -> Any:
        if self.kept is not None:
            samples = [
                {key: value for key, value in sample.items() if key in self.kept}
                if isinstance(sample, Mapping)
                else sample
                for sample in samples
            ]
        return self.collator(samples)


def _columns(model: nn.Module, asked: Arguments) -> frozenset[str] | None:
    if not asked.remove_unused_columns:
        return None
    return frozenset([*inspect.signature(model.forward).parameters, "label", "label_ids", *_label_names(model, asked)])


def _label_names(model: nn.Module, asked: Arguments) -> Sequence[str]:
    return asked.label_names or transformers.utils.find_labels(type(model))


def _without(dataset: Any, kept: frozenset[str] | None) -> Any:
    """A datasets.Dataset without the columns that nobody takes, so that they are not even read."""
    names = getattr(dataset, "column_names", None)
    if kept is None or not isinstance(names, list) or not hasattr(dataset, "remove_columns"):
        return dataset
    return dataset.remove_columns([name for name in names if name not in kept])


def _labels(collate: Columns, dataset: Any, asked: Arguments, model: nn.Module) -> tuple[str, ...]:
    """The keys of the labels in a batch, found by collating one sample."""
    made = dataset() if callable(dataset) and not hasattr(dataset, "__iter__") else dataset
    sample = next(iter(made)) if isinstance(made, IterableDataset) else made[0]
    with seeded(asked.seed):
        batch = collate([sample])
    if not isinstance(batch, Mapping):
        raise BadInput(f"the collator must make a dictionary of what forward takes (found {type(batch).__name__})")
    wanted = _label_names(model, asked)
    found = tuple(name for name in wanted if name in batch)
    if not found:
        raise BadInput(
            f"a batch holds no labels (found {', '.join(batch)}; {type(model).__name__} takes {', '.join(wanted) or 'none'}), "
            "so the model gives no loss; add them to the dataset, or use a collator that makes them, such as "
            "DataCollatorForLanguageModeling"
        )
    return found


# ---------------------------------------------------------------- optimizer and schedule


@dataclass(frozen=True)
class TrainerAdamW:
    """AdamW as Trainer makes it: weight decay for all but biases and the weights of norms."""

    options: Mapping[str, Any]
    decay: float
    decayed: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module, asked: Arguments) -> TrainerAdamW:
        options = {
            "lr": asked.learning_rate,
            "betas": (asked.adam_beta1, asked.adam_beta2),
            "eps": asked.adam_epsilon,
        }
        trainer: Any = transformers.Trainer
        names = trainer.get_decay_parameter_names(None, model)  # a method that needs no Trainer
        return cls(options, asked.weight_decay, frozenset(names))

    def __call__(self, named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        everyone = list(named)
        return AdamW(
            [
                {
                    "params": [value for name, value in everyone if (name in self.decayed) is decays],
                    "weight_decay": decay,
                }
                for decays, decay in ((True, self.decay), (False, 0.0))
            ],
            **self.options,
        )


@dataclass(frozen=True)
class TrainerSchedule:
    """The schedule that lr_scheduler_type names, with the warm-up of TrainingArguments."""

    name: str
    warmup: float  # updates, or the share of all of them where it is below 1
    options: Mapping[str, Any] | None = None
    max_steps: int = -1  # Trainer's: updates

    def __call__(self, optimizer: Optimizer, total_updates: int) -> Any:
        total = self.max_steps if self.max_steps > 0 else total_updates
        warmup = int(self.warmup) if self.warmup >= 1 else math.ceil(total * self.warmup)
        return transformers.get_scheduler(self.name, optimizer, warmup, total, dict(self.options or {}))


def _epochs(asked: Arguments, dataset: Any) -> int:
    """Whole epochs; as many as max_steps needs, where that is given."""
    if asked.max_steps <= 0:
        if asked.num_train_epochs != int(asked.num_train_epochs):
            raise BadInput(
                f"TrainingArguments(num_train_epochs={asked.num_train_epochs}) ends within an epoch; give max_steps for that"
            )
        return int(asked.num_train_epochs)
    if not hasattr(dataset, "__len__"):
        return 1
    batches = math.ceil(len(dataset) / asked.per_device_train_batch_size)
    return math.ceil(asked.max_steps / math.ceil(batches / asked.gradient_accumulation_steps))


# ---------------------------------------------------------------- evaluation


def _ignored(model: nn.Module) -> tuple[str, ...]:
    config = getattr(model, "config", None)
    return ("loss", *getattr(config, "keys_to_ignore_at_inference", IGNORED_OUTPUTS))


class Predictions:
    """A metric over all predictions at once: those of every batch are kept, then given to compute_metrics."""

    def __init__(self, compute_metrics: Callable[[Any], Mapping[str, float]], ignored: tuple[str, ...]):
        self.compute_metrics, self.ignored = compute_metrics, ignored
        self.outputs: Any = None
        self.labels: Any = None

    def update(self, output: Any, target: Any) -> None:
        if isinstance(output, Mapping):
            kept = tuple(value for key, value in output.items() if key not in self.ignored)
        else:
            kept = tuple(output[1:])
        outputs = _on_cpu(kept[0] if len(kept) == 1 else kept)
        labels = _on_cpu(tuple(target.values()) if isinstance(target, Mapping) else target)
        self.outputs = outputs if self.outputs is None else nested_concat(self.outputs, outputs, padding_index=-100)
        self.labels = labels if self.labels is None else nested_concat(self.labels, labels, padding_index=-100)

    def compute(self) -> dict[str, float]:
        whole = transformers.EvalPrediction(nested_numpify(self.outputs), nested_numpify(self.labels))
        return dict(self.compute_metrics(whole))

    def reset(self) -> None:
        self.outputs = self.labels = None


def _on_cpu(values: Any) -> Any:
    detached = nested_detach(values)
    return torch.utils._pytree.tree_map(
        lambda value: value.cpu() if isinstance(value, torch.Tensor) else value, detached
    )
