"""manyhands: train a PyTorch model with many hands, and see where the time goes.

The names below are everything meant for users. They load when first used, so that `import manyhands` and
`manyhands --help` stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .record import presentation
from .strategies.table import TABLE

__version__ = "0.1.0"

_WHERE = {
    "Task": "task",
    "Run": "record.run",
    "Runs": "studies.runs",
    "fit": "training.fit",
    "evaluate": "training.evaluate",
    "load_task": "tasks",
    "compare": "studies.compare",
    "doctor": "studies.doctor.doctor",
    "plan": "studies.plan.plan",
    "tune": "studies.tune",
    "diagnose": "studies.diagnose.diagnose",
    "verify": "studies.verify.verify",
    "lab": "studies.lab.lab",
    "report": "pages",
    "trackers": "record.trackers",
    "from_transformers": "bridges.transformers",
    "fit_settings": "bridges.transformers",
    "from_lightning": "bridges.lightning",
    "from_loader": "bridges.loader",
    "augment": "data.augment",
    "schedules": "schedules",
    "nn": "nn",
    "Strategy": "strategies.contract",
    **{kind: f"strategies.{name}" for name, (kind, _) in TABLE.items()},
    "Slurm": "world.engines.slurm",
    "Ray": "world.engines.ray",
    "ManyhandsError": "errors",
    "BadInput": "errors",
    "Refused": "errors",
    "RankFailed": "errors",
}
_MODULES = {"augment", "schedules", "nn", "trackers"}
presentation.show_with(lambda: import_module(".pages.notebook", __name__))  # records do not know pages themselves

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


if TYPE_CHECKING:
    from . import nn as nn
    from . import schedules as schedules
    from .bridges.lightning import from_lightning as from_lightning
    from .bridges.loader import from_loader as from_loader
    from .bridges.transformers import fit_settings as fit_settings
    from .bridges.transformers import from_transformers as from_transformers
    from .data import augment as augment
    from .errors import BadInput as BadInput
    from .errors import ManyhandsError as ManyhandsError
    from .errors import RankFailed as RankFailed
    from .errors import Refused as Refused
    from .pages import report as report
    from .record import trackers as trackers
    from .record.run import Run as Run
    from .strategies.contract import Strategy as Strategy
    from .studies.compare import compare as compare
    from .studies.diagnose.diagnose import diagnose as diagnose
    from .studies.doctor.doctor import doctor as doctor
    from .studies.lab.lab import lab as lab
    from .studies.plan.plan import plan as plan
    from .studies.runs import Runs as Runs
    from .studies.tune import tune as tune
    from .studies.verify.verify import verify as verify
    from .task import Task as Task
    from .tasks import load_task as load_task
    from .training.evaluate import evaluate as evaluate
    from .training.fit import fit as fit
    from .world.engines.ray import Ray as Ray
    from .world.engines.slurm import Slurm as Slurm
