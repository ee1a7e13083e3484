"""TrainingArguments as far as they say what is trained: read, or refused by name where they would change the result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

import transformers

from ..errors import BadInput

OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")  # one and the same arithmetic
SCHEDULES = (
    "linear", "cosine", "constant", "constant_with_warmup", "cosine_with_restarts", "polynomial", "inverse_sqrt",
    "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay",
)  # fmt: skip
# What would change the result, and is not done here: what to do instead.
REFUSED = {
    "deepspeed": "choose a strategy of mh.fit, such as fsdp",
    "fsdp": 'use mh.fit(task, "fsdp")',
    "parallelism_config": "choose a strategy of mh.fit",
    "label_smoothing_factor": "give a loss: from_transformers(..., loss=function of output and labels)",
    "fp16": "use bf16=True",
    "fp16_full_eval": "leave it out",
    "bf16_full_eval": "leave it out",
    "optim_args": "give optimizer=functools.partial(...) to from_transformers",
    "optim_target_modules": "give optimizer=functools.partial(...) to from_transformers",
    "neftune_noise_alpha": "add the noise in the model",
    "use_liger_kernel": "apply the kernels in the function that makes the model",
    "gradient_checkpointing": "call model.gradient_checkpointing_enable() in the function that makes the model",
    "auto_find_batch_size": "give per_device_train_batch_size",
    "group_by_length": "leave it out: the order of samples is made from the seed",
    "train_sampling_strategy": "leave it out: the order of samples is made from the seed",
    "dataloader_drop_last": "leave it out: the last, shorter batch of an epoch is trained with its true weight",
    "load_best_model_at_end": "leave it out: a fit ends with its last weights",
    "include_for_metrics": "leave it out: compute_metrics gets predictions and labels",
    "batch_eval_metrics": "leave it out: compute_metrics gets all predictions at once",
    "predict_with_generate": "leave it out: compute_metrics gets the outputs of forward",
}
GIVEN = {
    "optim": "optimizer",
    "optim_args": "optimizer",
    "lr_scheduler_type": "schedule",
    "label_smoothing_factor": "loss",
}
SETTINGS = {"use_cpu": ("device", "cpu"), "bf16": ("precision", "bf16"), "torch_compile": ("compile", True)}


@dataclass(frozen=True)
class Arguments:
    """What is read. The defaults are those of TrainingArguments."""

    learning_rate: float
    per_device_train_batch_size: int
    per_device_eval_batch_size: int
    num_train_epochs: float
    max_steps: int
    warmup_steps: float
    lr_scheduler_type: str
    lr_scheduler_kwargs: Mapping[str, Any] | None
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    seed: int
    label_names: Sequence[str] | None
    remove_unused_columns: bool
    gradient_accumulation_steps: int
    max_grad_norm: float | None
    dataloader_num_workers: int
    settings: dict[str, Any]  # keywords of mh.fit


def read_arguments(args: Any, given: Collection[str] = ()) -> Arguments:
    """Trainer's own defaults where `args` is None. What is `given` as fields of the Task is not asked of the arguments."""
    defaults = _defaults()
    if args is not None and not hasattr(args, "per_device_train_batch_size"):
        raise BadInput(f"args must be transformers.TrainingArguments (found {type(args).__name__})")
    found = {name: getattr(args, name, default) for name, default in defaults.items()}
    for name, advice in REFUSED.items():
        value = getattr(args, name, None)
        if value and value != defaults.get(name) and GIVEN.get(name) not in given:
            raise BadInput(f"TrainingArguments({name}={value!r}) is not supported; {advice}")
    for name, known in (("optim", OPTIMIZERS), ("lr_scheduler_type", SCHEDULES)):
        if GIVEN[name] not in given and _plain(found[name]) not in known:
            raise BadInput(
                f'TrainingArguments({name}="{_plain(found[name])}") is not supported (there are: {", ".join(known)}); '
                f"give {GIVEN[name]}=... to from_transformers"
            )
    ratio = getattr(args, "warmup_ratio", None)  # of transformers 4
    warmup = found["warmup_steps"] or ratio or 0
    names = {item.name for item in fields(Arguments)} - {"settings", "warmup_steps", "lr_scheduler_type"}
    return Arguments(
        **{name: found[name] for name in names},
        warmup_steps=warmup,
        lr_scheduler_type=_plain(found["lr_scheduler_type"]),
        settings=_settings(found),
    )


def _settings(found: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: value for name, (key, value) in SETTINGS.items() if found[name]}
    accumulate, clip, steps = (found[key] for key in ("gradient_accumulation_steps", "max_grad_norm", "max_steps"))
    if accumulate > 1:
        settings["accumulate"] = accumulate
    if clip:  # Trainer reads 0 and None as no clipping
        settings["clip"] = float(clip)
    if steps > 0:
        settings["max_steps"] = steps * accumulate  # Trainer counts updates
    if found["dataloader_num_workers"]:
        settings["loader_workers"] = found["dataloader_num_workers"]
    return settings


def _defaults() -> dict[str, Any]:
    """Of the installed version; read from the class, as an object of it asks for accelerate."""
    return {
        item.name: None if item.default is MISSING else item.default for item in fields(transformers.TrainingArguments)
    }


def _plain(value: Any) -> str:
    """The word behind a member of an enumeration."""
    return str(getattr(value, "value", value))
