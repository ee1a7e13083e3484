"""The pieces people can take into their own loops. Names only: the code lives where the strategies use it.

from manyhands.nn import DataParallelModel, DataParallelCriterion
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# One line a name: where it lives. They load when first used.
_WHERE = {
    "DataParallelModel": "strategies.replicas",
    "DataParallelCriterion": "strategies.replicas",
    "SharedModel": "strategies.shared_weights",
}

__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        from .errors import did_you_mean

        raise AttributeError(f'manyhands.nn has no "{name}"{did_you_mean(name, _WHERE)}')
    value = getattr(import_module(f".{_WHERE[name]}", __package__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from .strategies.replicas import DataParallelCriterion as DataParallelCriterion
    from .strategies.replicas import DataParallelModel as DataParallelModel
    from .strategies.shared_weights import SharedModel as SharedModel
