"""Models looked into: what their layers cost, and where to cut them."""

from .cut_model import Cut
from .layer_costs import Layer, profile
from .partition import cut
from .stage import Stage

__all__ = ["Cut", "Layer", "Stage", "cut", "profile"]
