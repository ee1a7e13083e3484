"""Gradients that backward adds up in shared memory, so that handing them over copies nothing."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ...model.torch_internals import VERSIONS


class GradientsInPlace:
    """`homes` are the places in shared memory where another process reads the gradients of `parameters`.

    A parameter's gradient lives there from its second update on if the first was whole. Backward raises the version of
    what it adds to: so a parameter that got no gradient, which an optimizer must not touch, is told from one of zeros.
    """

    def __init__(self, parameters: Mapping[str, Tensor], homes: Mapping[str, Tensor]):
        self._parameters, self._homes = parameters, homes
        self._known: list[tuple[Tensor, Tensor]] = []  # parameters at home, with the place of their gradients
        self._away = {name for name in homes if VERSIONS.found and parameters[name].device.type == "cpu"}
        self._versions: list[int] | None = None  # of the places, while they are laid out

    def lay_out(self) -> None:
        """Before the first backward of an update: zeros for it to add to."""
        if self._known and self._versions is None:
            for parameter, home in self._known:
                parameter.grad = home.zero_()
            self._versions = [VERSIONS.found(home) for _, home in self._known]

    def collect(self) -> dict[str, Tensor | None]:
        """After the last backward of an update: the gradients that came, which the parameters no longer hold."""
        for (parameter, home), version in zip(self._known, self._versions or [], strict=self._versions is not None):
            if parameter.grad is home and VERSIONS.found(home) == version:
                parameter.grad = None
        self._versions = None
        return {name: parameter.grad for name, parameter in self._parameters.items()}

    def adopt(self, gradients: Mapping[str, Tensor | None]) -> None:
        """These were handed over: the whole ones among them live here from now on."""
        for name in list(self._away):
            gradient = gradients[name]
            if gradient is not None and not gradient.is_sparse:
                self._away.remove(name)
                self._known.append((self._parameters[name], self._homes[name]))
