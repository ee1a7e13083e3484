"""Models looked into: what their layers cost, and where to cut them."""

from .partition import cut
from .profile import Layer, profile
from .stage import Cut, Stage

__all__ = ["Cut", "Layer", "Stage", "cut", "profile"]
