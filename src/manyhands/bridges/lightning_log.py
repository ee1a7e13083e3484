"""What a LightningModule finds around its steps: self.log, and a stand-in for self.trainer that knows a few things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import BadInput

END = ("on_validation_epoch_end", "on_validation_end")


class StandInTrainer:
    """What is known of a Trainer's attributes; all others are refused by name."""

    is_global_zero, global_rank, local_rank, node_rank = True, 0, 0, 0
    world_size = num_devices = num_nodes = accumulate_grad_batches = 1
    logger = progress_bar_callback = None
    barebones = sanity_checking = fast_dev_run = False

    def __init__(self, **known: Any):
        self.loggers: list[Any] = []
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        asked = f"self.{name}" if name in ("current_epoch", "global_step") else f"self.trainer.{name}"
        raise BadInput(
            f"the LightningModule asks for {asked}, which is not known inside a step here; a step may depend on the "
            "batch and the weights alone"
        )


class Log:
    """Catches what a module logs while the block runs. `count`: samples of the batch."""

    def __init__(self, module: Any, count: int = 1, trainer: StandInTrainer | None = None):
        self.module, self.count = module, count
        self.values: dict[str, tuple[Any, int]] = {}  # name -> value, samples it is a mean over
        self._trainer = trainer

    def __enter__(self) -> Log:
        training = self.module.training
        self.module.trainer = self._trainer or StandInTrainer(training=training, validating=not training)
        vars(self.module).update(log=self.log, log_dict=self.log_dict)
        return self

    def __exit__(self, *problem: object) -> None:
        del vars(self.module)["log"], vars(self.module)["log_dict"]
        self.module.trainer = None

    def log(
        self, name: str, value: Any, *_: Any, reduce_fx: Any = "mean", batch_size: int | None = None, **options: Any
    ) -> None:
        if reduce_fx not in ("mean", None):
            raise BadInput(
                f'self.log("{name}", reduce_fx={reduce_fx!r}): logged values are averaged over samples; '
                'use reduce_fx="mean", or log a torchmetrics object'
            )
        self.values[name] = (value.detach() if isinstance(value, Tensor) else value, batch_size or self.count)

    def log_dict(self, dictionary: Mapping[str, Any], *_: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, **options)


class Logged:
    """The logged values of a whole evaluation: means over samples; torchmetrics objects compute theirs."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        self._metrics: dict[str, Any] = {}
        self._module: Any = None

    def update(self, output: Mapping[str, Any], target: Any = None) -> None:
        self._module = output["log"].module
        self._add(output["log"])

    def compute(self) -> dict[str, float]:
        found = {name: float(metric.compute()) for name, metric in self._metrics.items()}
        if self._module is not None:
            with Log(self._module) as log:
                for hook in END:
                    getattr(self._module, hook)()
            self._metrics = {}
            self._add(log)
            found |= {name: float(metric.compute()) for name, metric in self._metrics.items()}
        return found | {name: total / count for name, (total, count) in self._sums.items()}

    def _add(self, log: Log) -> None:
        for name, (value, count) in log.values.items():
            if hasattr(value, "compute"):
                self._metrics[name] = value
            else:
                total, before = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + float(value) * count, before + count
