"""What trials say of simulations of the same strategy, carried to other numbers of ranks.

Of what a step took longer than simulated, some shrinks as the simulated step does when ranks share it out (a cache that is
shared, a machine that was slower in that minute), and some does not (Python around every step, hooks, wake-ups). Two trials
tell them apart: with s seconds simulated and t tried, t - s = lasting + share * s at both numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TELLING = 1.2  # how many times as long as the other a simulated step must be for two trials to tell anything


@dataclass(frozen=True)
class Correction:
    """Of a simulated step: `times` as long, and `lasting` seconds more at any number of ranks."""

    times: float = 1.0
    lasting: float = 0.0

    def __call__(self, seconds: float) -> float:
        return self.times * seconds + self.lasting


def corrected(steps: Sequence[tuple[float, float]], noise: float) -> Correction:
    """From (tried, simulated) seconds of a step, the nearest number of ranks first: there, it comes out as tried.

    Trials vary, and lasting seconds weigh the more the shorter the step gets. So they are never more than what lies beyond the
    noise (relative) of the nearest trial.
    """
    tried, simulated = steps[0]
    lasting = 0.0
    for other_tried, other in steps[1:2]:
        if max(other, simulated) >= TELLING * min(other, simulated):
            share = ((other_tried - other) - (tried - simulated)) / (other - simulated)
            lasting = (tried - simulated) - share * simulated
    lasting = max(0.0, min(lasting, tried - (1 + noise) * simulated))
    return Correction((tried - lasting) / simulated, lasting)
