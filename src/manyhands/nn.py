"""The pieces people can take into their own loops. Names only: the code lives where the strategies use it.

from manyhands.nn import DataParallelModel, DataParallelCriterion
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# One line a name: where it lives. They load when first used.
_WHERE = {
    "DataParallelModel": "strategies.pieces.replicas",
    "DataParallelCriterion": "strategies.pieces.replicas",
    "SharedModel": "strategies.pieces.shared_weights",
    "send": "strategies.pieces.stage_links",
    "receive": "strategies.pieces.stage_links",
    "Links": "strategies.pieces.stage_links",
    "cut": "model",
    "profile": "model",
    "gpipe": "strategies.pieces.pipeline_schedules",
    "one_f_one_b": "strategies.pieces.pipeline_schedules",
    "interleaved": "strategies.pieces.pipeline_schedules",
    "plan": "strategies.pieces.pipeline_schedules",
    "split_sizes": "strategies.pieces.pipeline_schedules",
    "simulate": "strategies.pieces.pipeline_timeline",
    "Order": "data.order",
    "Shard": "data.order",
    "ShardSampler": "data.sampler",
    "together": "world.launch.together",
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
    from .data.order import Order as Order
    from .data.order import Shard as Shard
    from .data.sampler import ShardSampler as ShardSampler
    from .model import cut as cut
    from .model import profile as profile
    from .strategies.pieces.pipeline_schedules import gpipe as gpipe
    from .strategies.pieces.pipeline_schedules import interleaved as interleaved
    from .strategies.pieces.pipeline_schedules import one_f_one_b as one_f_one_b
    from .strategies.pieces.pipeline_schedules import plan as plan
    from .strategies.pieces.pipeline_schedules import split_sizes as split_sizes
    from .strategies.pieces.pipeline_timeline import simulate as simulate
    from .strategies.pieces.replicas import DataParallelCriterion as DataParallelCriterion
    from .strategies.pieces.replicas import DataParallelModel as DataParallelModel
    from .strategies.pieces.shared_weights import SharedModel as SharedModel
    from .strategies.pieces.stage_links import Links as Links
    from .strategies.pieces.stage_links import receive as receive
    from .strategies.pieces.stage_links import send as send
    from .world.launch.together import together as together
