"""Whether a strategy is equal to `single`: gradients and weights compared in float32, and in float64 where that is in doubt.

float32    gradient of the first update, weights after the steps: each within what one rounding does to `single`
float64    asked where float32 exceeds that, or where rounding alone goes so far that it proves nothing:
           what is equal here differs by rounding there
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import ManyhandsError
from ...record.run import Run
from ...strategies import make_strategy
from ...strategies.contract import Strategy
from .distance import Distance, Tensors, distance, noise_of
from .fits import Asked, Change, Fits

SEEDS = (1, 2)  # of the roundings that single is tried with
MOST = {False: (1e-3, 0.05), True: (1e-7, 1e-4)}  # by double: the widest tolerance of gradients, and of weights
WIDE = 1e-4  # a tolerance of float32 that leaves room for real differences
HOPELESS = 1000.0  # times the tolerance: no rounding


@dataclass(frozen=True)
class Judgement:
    """What was found, in the precision that decided."""

    gradient: Distance | None  # None where a strategy has no gradient to speak of
    weights: Distance
    double: bool = False
    single_precision: Distance | None = None  # the weights in float32, where float64 decided

    @property
    def equal(self) -> bool:
        return self.weights.same and (self.gradient is None or self.gradient.same)


class Judge:
    """Compares a strategy with `single`, from the fits of one task. `coarse`: computes in 16 bits, as `exact32` undoes."""

    def __init__(self, fits: Fits, steps: int, accumulate: int, trained: frozenset[str], exact32: Change | None):
        self.fits, self.steps, self.accumulate, self.trained = fits, steps, accumulate, trained
        self.exact32 = exact32
        self.single = make_strategy("single")

    def judge(self, strategy: Strategy, changes: tuple[Change, ...] = (), quick: bool = False) -> Judgement:
        """Raises what ends a fit. A `quick` answer may leave out what cannot change it."""
        found = self._measured(strategy, changes, False, quick)
        doubtful = not found.equal or found.weights.tolerance > WIDE
        hopeless = quick and not found.equal and _times(found) > HOPELESS
        if not doubtful or hopeless or self._coarse(changes):
            return found
        try:
            precise = self._measured(strategy, changes, True, quick)
        except ManyhandsError:  # a model that cannot be computed so
            return found
        return replace(precise, single_precision=found.weights)

    def after(self, strategy: Strategy, steps: int, double: bool) -> Distance:
        """The weights after so many steps."""
        return self._distance(Asked(strategy, steps, double=double))

    def astray(self, strategy: Strategy) -> Judgement:
        """How far one strays that promises nothing."""
        return Judgement(None, self._distance(Asked(strategy, self.steps)))

    def record(self, strategy: Strategy) -> Run:
        return self.fits.run(Asked(strategy, self.steps))

    def _measured(self, strategy: Strategy, changes: tuple[Change, ...], double: bool, quick: bool) -> Judgement:
        asked = Asked(strategy, self.accumulate, changes, gradient=True, double=double)
        gradient = self._distance(asked)
        if quick and gradient.times > HOPELESS:
            return Judgement(gradient, gradient, double)
        return Judgement(gradient, self._distance(replace(asked, steps=self.steps, gradient=False)), double)

    def _distance(self, asked: Asked) -> Distance:
        reference = replace(asked, strategy=self.single)
        one, other = (self._tensors(question) for question in (reference, asked))
        exact = (
            replace(reference, changes=(*asked.changes, self.exact32))
            if self._coarse(asked.changes) and self.exact32
            else reference
        )
        seeds = SEEDS if not asked.changes else SEEDS[:1]
        nudged = [self._tensors(replace(exact, nudge=seed)) for seed in seeds]
        noise = noise_of(self._tensors(exact), nudged)
        return distance(one, other, noise, asked.double, MOST[asked.double][0 if asked.gradient else 1])

    def _coarse(self, changes: tuple[Change, ...]) -> bool:
        """Whether what is compared computes in 16 bits: then rounding is not what one bit of a weight does."""
        return self.exact32 is not None and self.exact32 not in changes

    def _tensors(self, asked: Asked) -> Tensors:
        weights = self.fits.run(asked).weights or {}
        if not asked.gradient:
            return weights
        return {name: tensor for name, tensor in weights.items() if name in self.trained}


def _times(found: Judgement) -> float:
    return max(found.weights.times, found.gradient.times if found.gradient is not None else 0.0)


def first_step(judge: Judge, strategy: Strategy, double: bool) -> tuple[int, str] | None:
    """The first step after which the weights differ, and the first parameter that does then; None where none does."""

    def differs(steps: int) -> bool:
        return not judge.after(strategy, steps, double).same

    low, high = 0, judge.steps  # equal after the one, different after the other
    if not differs(high):
        return None
    step = judge.accumulate  # most differ at once
    while high - low > 1:
        if differs(step):
            high = step
        else:
            low = step
        step = (low + high) // 2
    return high, judge.after(strategy, high, double).first or ""
