"""manyhands: train a PyTorch model with many hands, and see where the time goes.

The names below are everything meant for users. They load when first used, so that `import manyhands` and
`manyhands --help` stay quick.
"""

from __future__ import annotations

import copyreg
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Task": "task",
    "Run": "measure.run",
    "fit": "fit",
    "evaluate": "evaluate",
    "load_task": "tasks",
    "compare": "compare",
    "report": "report",
    "augment": "data.augment",
    "schedules": "schedules",
    "nn": "nn",
    "Strategy": "strategies.base",
    "Single": "strategies.single",
    "DataParallel": "strategies.data_parallel",
    "BalancedDataParallel": "strategies.balanced_data_parallel",
    "DDP": "strategies.ddp",
    "ModelParallel": "strategies.model_parallel",
    "Pipeline": "strategies.pipeline",
    "Hybrid": "strategies.hybrid",
    "Locked": "strategies.locked",
    "Hogwild": "strategies.hogwild",
    "ParameterServer": "strategies.parameter_server",
    "FSDP": "strategies.fsdp",
    "LocalSGD": "strategies.local_sgd",
    "ManyhandsError": "errors",
    "BadInput": "errors",
    "Refused": "errors",
    "RankFailed": "errors",
}
_MODULES = {"augment", "schedules", "nn"}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        from .errors import did_you_mean

        raise AttributeError(f'manyhands has no "{name}"{did_you_mean(name, _WHERE)}')
    module = import_module(f".{_WHERE[name]}", __name__)
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """`manyhands.fit` is the function, also after the module manyhands/fit.py was imported by something else."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _WHERE and name not in _MODULES:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
copyreg.pickle(_Package, lambda package: (import_module, (package.__name__,)))  # type: ignore[arg-type, return-value]  # functions that use `mh` travel


if TYPE_CHECKING:
    from . import nn as nn
    from . import schedules as schedules
    from .compare import compare as compare
    from .data import augment as augment
    from .errors import BadInput as BadInput
    from .errors import ManyhandsError as ManyhandsError
    from .errors import RankFailed as RankFailed
    from .errors import Refused as Refused
    from .evaluate import evaluate as evaluate
    from .fit import fit as fit
    from .measure.run import Run as Run
    from .report import report as report
    from .strategies.base import Strategy as Strategy
    from .task import Task as Task
    from .tasks import load_task as load_task
