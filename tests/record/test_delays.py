"""A delay is found in its own phase: a small sample of benchmarks/delays.py that holds on a busy machine too.

Load only ever adds to a phase, so what is asked is that the delay is in it; a part booked elsewhere would be missing here.
"""

from __future__ import annotations

import statistics

import pytest
from benchmarks.delays import PLACES, measure

from manyhands.record.run import PHASES


@pytest.mark.parametrize("strategy", ["ddp", "hogwild", "pipeline"])
def test_a_delay_is_booked_to_the_phase_it_strikes(strategy: str) -> None:
    steps = measure(strategy, pairs=3)
    for place in PLACES:
        delayed = [spent for spent in steps if spent.place == place and spent.passed]
        assert len(delayed) >= 3, place
        # the rank that comes first to a collective waits for the other during its own delay: that part is `wait`
        phases = [PHASES.index(name) for name in ((place, "wait") if place == "communication" else (place,))]
        found = [sum(spent.phases[phase] for phase in phases) / spent.passed for spent in delayed]
        assert statistics.median(found) >= 0.99, (place, found)
