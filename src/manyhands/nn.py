"""The pieces people can take into their own loops. Names only: the code lives where the strategies use it.

from manyhands.nn import DataParallelModel, DataParallelCriterion
"""

from __future__ import annotations

from typing import Any

from .data.order import Order, Shard
from .data.sampler import ShardSampler
from .errors import did_you_mean
from .model import cut, profile
from .strategies.pieces.pipeline_schedules import gpipe, interleaved, one_f_one_b, plan, split_sizes
from .strategies.pieces.pipeline_timeline import simulate
from .strategies.pieces.replicas import DataParallelCriterion, DataParallelModel
from .strategies.pieces.shared_weights import SharedModel
from .strategies.pieces.stage_links import Links, receive, send
from .world.launch.together import together

__all__ = [
    "DataParallelCriterion", "DataParallelModel", "Links", "Order", "Shard", "ShardSampler", "SharedModel", "cut", "gpipe",
    "interleaved", "one_f_one_b", "plan", "profile", "receive", "send", "simulate", "split_sizes", "together",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    raise AttributeError(f'manyhands.nn has no "{name}"{did_you_mean(name, __all__)}')
