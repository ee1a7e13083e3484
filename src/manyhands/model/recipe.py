"""A model as a recipe: the factory that makes it, and the tensors it holds.

A module does not always survive being pickled: parametrizations refuse it, scripted modules and models that register
things when they are built lose a part on the way. What made it once can make it again, on any rank: the factory is called
under the same seed, and what it made is then given the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

from torch import Tensor, nn

from ..data.process_state import seeded
from ..errors import BadInput
from .modes import keep_eval_modes


@dataclass(frozen=True)
class Recipe:
    """How to make a model again, equal to `tensors` in every parameter and buffer."""

    factory: Callable[[], nn.Module]
    seed: int
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, factory: Callable[[], nn.Module], seed: int) -> Recipe:
        return cls(factory, seed, {name: tensor.detach() for name, tensor in _tensors(model).items()})

    def make(self) -> nn.Module:
        """The model again. It takes the tensors as they are: they must not be anybody else's."""
        with seeded(self.seed):
            model = self.factory()
        keep_eval_modes(model)
        own = _tensors(model)
        if {name: tensor.shape for name, tensor in own.items()} != {n: t.shape for n, t in self.tensors.items()}:
            different = sorted(set(own) ^ set(self.tensors)) or ["shapes"]
            raise BadInput(
                f"task.model makes another model each time it is called (differs in {different[0]}); "
                "a factory must make the same one under the same seed"
            )
        for name, tensor in own.items():
            tensor.data = self.tensors[name]
        return model


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by the first of their names; buffers that are not stored too."""
    return dict(chain(model.named_parameters(), model.named_buffers()))
