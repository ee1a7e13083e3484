"""from_lightning(): a task from a LightningModule: its training_step is the model, its configure_optimizers the recipe.

    while training    training_step(batch, 0)      the loss
    in evaluation     validation_step(batch, 0)    the loss, and what self.log was given, averaged over samples

A hook that is not called here may change training, so a module that overrides one is refused by its name, unless the
caller says that it may be left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset, default_collate

from ..data.loader_parts import LoaderParts
from ..data.process_state import seeded
from ..errors import BadInput
from ..task import Task
from .lightning_log import Log, Logged, StandInTrainer
from .lightning_step import Stepping, lightning_base, overrides, prepared, stepping
from .taken_apart import optimizer_parts, schedule_parts

NOT_CALLED = (
    "backward", "configure_callbacks", "configure_gradient_clipping", "configure_sharded_model", "lr_scheduler_step",
    "on_after_backward", "on_after_batch_transfer", "on_before_backward", "on_before_batch_transfer",
    "on_before_optimizer_step", "on_before_zero_grad", "on_fit_start", "on_train_batch_end", "on_train_batch_start",
    "on_train_epoch_end", "on_train_epoch_start", "on_train_start", "on_validation_batch_end",
    "on_validation_batch_start", "on_validation_model_eval", "on_validation_model_train", "optimizer_step",
    "optimizer_zero_grad", "transfer_batch_to_device",
)  # fmt: skip


def from_lightning(
    module: nn.Module | Callable[[], nn.Module],
    datamodule: Any = None,
    *,
    train: Any = None,
    val: Any = None,
    loss: Callable[..., Tensor] | None = None,
    epochs: int = 1,
    ignore: Collection[str] = (),
    **changes: Any,
) -> Task:
    """A Task from a LightningModule (or a function that makes one) and its data; `changes` are further fields of the Task.

    With a `loss`, forward(input) is the model, batches are (input, target), and the model can be cut into stages.
    `ignore` names hooks that the module overrides and that may be left out.
    """
    with seeded(changes.get("seed", 0)):
        example: Any = module if isinstance(module, nn.Module) else module()
        _check(example, ignore)
        data = _data(example, datamodule, train, val, ignore)
        fields: dict[str, Any] = {"epochs": epochs, "name": type(example).__name__, **data, **changes}
        trainer = _trainer(fields, datamodule)
        prepared(example, trainer)
        fields = {**_recipe(example, trainer), **fields}
    if loss is not None:
        model = example if isinstance(module, nn.Module) else partial(prepared, module)
        return Task(model=model, loss=loss, **fields)
    if overrides(example, "validation_step"):
        fields.setdefault("metrics", {"": Logged()})
    else:
        fields["test"] = None
    for name in ("train", "test"):
        fields[name] = _whole(fields[name])
    fields["collate"] = Whole(fields.get("collate"))
    return Task(
        model=Stepping(example) if isinstance(module, nn.Module) else partial(stepping, module),
        loss=None,
        call="one",
        **fields,
    )


def _check(module: Any, ignore: Collection[str]) -> None:
    kind = type(module).__name__
    base = lightning_base(module)
    for name in ignore:
        if name not in NOT_CALLED:
            raise BadInput(
                f'ignore names hooks that are not called here (found "{name}"; those are: {", ".join(NOT_CALLED)})'
            )
    if not getattr(module, "automatic_optimization", True):
        raise BadInput(
            f"{kind} makes its updates itself (automatic_optimization=False, as GANs do); here every step is one update "
            "of one optimizer"
        )
    found = [name for name in NOT_CALLED if name not in ignore and overrides(module, name)]
    if found:
        names = f"{', '.join(found)}, which {'is' if len(found) == 1 else 'are'} not called here"
        raise BadInput(
            f"{kind} overrides {names}; where that changes nothing in training, leave it out with ignore={found!r}"
        )
    if base.__name__ == "LightningModule" and not overrides(module, "configure_optimizers"):
        raise BadInput(f"{kind} has no configure_optimizers; a fit needs an optimizer")


# ---------------------------------------------------------------- data


class Whole:
    """A collate function whose whole batch is the input: a step takes it apart itself."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None):
        self.collate = collate or default_collate

    def __call__(self, samples: list[Any]) -> tuple[Any, None]:
        return self.collate(samples), None


def _whole(data: Any) -> Any:
    """The same data, collated into whole batches by the Task or by its own collate function."""
    if isinstance(data, LoaderParts):
        return replace(data, collate=Whole(data.collate))
    return TensorDataset(*data) if isinstance(data, tuple) else data


def _data(module: Any, datamodule: Any, train: Any, val: Any, ignore: Collection[str]) -> dict[str, Any]:
    """Fields of the Task from what was given, else from the data module, else from the module's own loaders."""
    if datamodule is not None:
        _check_datamodule(datamodule, ignore)
        datamodule.prepare_data()
        datamodule.setup("fit")
    for source in (datamodule, module):
        if source is not None and train is None and overrides(source, "train_dataloader"):
            train = source.train_dataloader()
        if source is not None and val is None and overrides(source, "val_dataloader"):
            val = source.val_dataloader()
    if train is None:
        raise BadInput(f"{type(module).__name__} comes without data; give a datamodule, or train=DataLoader(...)")
    fields: dict[str, Any] = {}
    for name, size, data in (("train", "batch_size", _one(train)), ("test", "eval_batch_size", _one(val))):
        fields[name] = LoaderParts.of(data, name) if isinstance(data, DataLoader) else data
        if isinstance(data, DataLoader):
            fields[size] = data.batch_size
    return fields


def _check_datamodule(datamodule: Any, ignore: Collection[str]) -> None:
    lightning_base(datamodule)
    for name in ("on_before_batch_transfer", "on_after_batch_transfer", "transfer_batch_to_device"):
        if name not in ignore and overrides(datamodule, name):
            raise BadInput(
                f"{type(datamodule).__name__} overrides {name}, which is not called here; use collate_fn or augment"
            )


def _one(loaders: Any) -> Any:
    """The one loader of a list or dictionary of loaders."""
    several = list(loaders.values()) if isinstance(loaders, dict) else loaders
    if not isinstance(several, list) or not all(isinstance(loader, DataLoader) for loader in several):
        return loaders
    if len(several) > 1:
        raise BadInput(f"there are {len(several)} DataLoaders for one purpose; give one: train=... or val=...")
    return several[0] if several else None


# ---------------------------------------------------------------- optimizer and schedule


def _trainer(fields: dict[str, Any], datamodule: Any) -> StandInTrainer:
    """What configure_optimizers may ask its Trainer for."""
    data = fields["train"].dataset if isinstance(fields["train"], LoaderParts) else fields["train"]
    samples = len(data) if hasattr(data, "__len__") else math.inf
    batches = math.ceil(samples / fields.get("batch_size", 128)) if samples < math.inf else samples
    return StandInTrainer(
        max_epochs=fields["epochs"],
        max_steps=-1,
        datamodule=datamodule,
        num_training_batches=batches,
        estimated_stepping_batches=fields["epochs"] * batches,
        training=True,
    )


def _recipe(module: Any, trainer: StandInTrainer) -> dict[str, Any]:
    """Fields of the Task from configure_optimizers, in all the forms that it may answer in."""
    with Log(module, trainer=trainer):
        found = module.configure_optimizers()
    optimizers, schedules, monitor = _answer(found)
    if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer):
        raise BadInput(
            f"configure_optimizers gives {len(optimizers)} optimizers; here every step is one update of one optimizer"
        )
    if len(schedules) > 1:
        raise BadInput(f"configure_optimizers gives {len(schedules)} schedules for one optimizer; chain them into one")
    [optimizer] = optimizers
    fields: dict[str, Any] = {"optimizer": optimizer_parts(optimizer, module, scheduled=bool(schedules))}
    if schedules:
        config = schedules[0] if isinstance(schedules[0], dict) else {"scheduler": schedules[0]}
        schedule, monitor = config["scheduler"], config.get("monitor", monitor)
        _check_monitor(schedule, monitor)
        fields["schedule"] = schedule_parts(
            schedule, optimizer, config.get("frequency", 1), per_epoch=config.get("interval", "epoch") == "epoch"
        )
    return fields


def _answer(found: Any) -> tuple[list[Any], list[Any], str | None]:
    """Optimizers, schedules, and the figure that a schedule follows."""
    if isinstance(found, dict):
        schedules = [found["lr_scheduler"]] if found.get("lr_scheduler") is not None else []
        return [found["optimizer"]], schedules, found.get("monitor")
    if isinstance(found, tuple | list):
        if len(found) == 2 and isinstance(found[0], list | tuple):
            return list(found[0]), list(found[1]) if isinstance(found[1], list | tuple) else [found[1]], None
        if len(found) == 1 and isinstance(found[0], dict):
            return _answer(found[0])
        return list(found), [], None
    return [found] if found is not None else [], [], None


def _check_monitor(schedule: Any, monitor: str | None) -> None:
    if isinstance(schedule, ReduceLROnPlateau) and monitor is not None and not monitor.endswith("loss"):
        raise BadInput(f'ReduceLROnPlateau follows the loss on the validation data (found monitor="{monitor}")')
