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
    """What was found; weights in the precision that decided."""

    gradient: Distance | None  # None where a strategy has no gradient to speak of
    weights: Distance
    double: bool = False  # whether that is float64
    single_precision: Distance | None = None  # the weights in float32, where float64 decided

    @property
    def equal(self) -> bool:
        return self.weights.same and (self.gradient is None or self.gradient.same)


class Judge:
    """Compares a strategy with `single`, from the fits of one task.

    `exact32` is the change that undoes computing in 16 bits, where a task does that: rounding is then far more than what one
    bit of a weight does, so the tolerance comes from fits with that change.
    """

    def __init__(self, fits: Fits, steps: int, accumulate: int, trained: frozenset[str], exact32: Change | None):
        self.fits, self.steps, self.accumulate, self.trained = fits, steps, accumulate, trained
        self.exact32 = exact32
        self.single = make_strategy("single")

    def judge(self, strategy: Strategy) -> Judgement:
        """The whole comparison; raises what ends a fit."""
        asked = Asked(strategy, self.steps)
        gradient, weights = self._distance(self._first_update(asked)), self._distance(asked)
        found = Judgement(gradient, weights)
        if (found.equal and weights.tolerance <= WIDE) or self._coarse(()):
            return found
        wide = replace(asked, double=True)
        try:
            gradient = self._distance(self._first_update(wide))
            if not gradient.same and not weights.same:
                return Judgement(gradient, weights)
            return Judgement(gradient, self._distance(wide), True, weights)
        except ManyhandsError:  # a model that cannot be computed so
            return found

    def equal_with(self, strategy: Strategy, changes: tuple[Change, ...], gradient_too: bool) -> bool:
        """Whether the strategy is equal once some things are changed; what cannot matter any more is not asked."""
        asked = Asked(strategy, self.steps, changes)
        questions = [self._first_update(asked), asked] if gradient_too else [asked]
        return all(self._same(question) for question in questions)

    def _same(self, asked: Asked) -> bool:
        found = self._distance(asked)
        doubtful = not found.same or found.tolerance > WIDE
        if not doubtful or found.times > HOPELESS or self._coarse(asked.changes):
            return found.same
        try:
            return self._distance(replace(asked, double=True)).same
        except ManyhandsError:
            return found.same

    def _first_update(self, asked: Asked) -> Asked:
        return replace(asked, steps=self.accumulate, gradient=True)

    def after(self, strategy: Strategy, steps: int, double: bool) -> Distance:
        """The weights after so many steps."""
        return self._distance(Asked(strategy, steps, double=double))

    def astray(self, strategy: Strategy) -> Judgement:
        """How far one strays that promises nothing."""
        return Judgement(None, self._distance(Asked(strategy, self.steps)))

    def record(self, strategy: Strategy) -> Run:
        return self.fits.run(Asked(strategy, self.steps))

    def _distance(self, asked: Asked) -> Distance:
        reference = replace(asked, strategy=self.single)
        one, other = (self._tensors(question) for question in (reference, asked))
        exact = (
            replace(reference, changes=(*asked.changes, self.exact32))
            if self._coarse(asked.changes) and self.exact32
            else reference
        )
        whole = asked.gradient or asked.steps == self.steps
        seeds = SEEDS if whole and not asked.changes and not asked.double else SEEDS[:1]
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


def first_step(judge: Judge, strategy: Strategy, double: bool) -> tuple[int, str] | None:
    """The first step after which the weights differ, and the first parameter that does then; None where none does."""

    def differs(steps: int) -> bool:
        return not judge.after(strategy, steps, double).same

    low, high = 0, judge.steps  # equal after the one, different after the other
    if not differs(high):  # gradients can differ where weights hardly move
        return None
    step = judge.accumulate  # most differ at once
    while high - low > 1:
        if differs(step):
            high = step
        else:
            low = step
        step = (low + high) // 2
    return high, judge.after(strategy, high, double).first or ""
