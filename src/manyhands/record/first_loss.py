"""The first loss of a run against that of `single`: from equal weights and batches, an exact strategy has the same one.

A check that costs nothing: right tasks agree to about 1e-7, wrong ones (a loss that is no mean over samples, other
samples on other ranks) differ by 5e-5 or more. It is a check of the first forward pass alone; `manyhands verify` also
looks at gradients and weights.
"""

from __future__ import annotations

from .run import Run

TOLERANCE = 1e-5  # relative; sums over shards round differently


def differing(run: Run, single: Run) -> tuple[float, float] | None:
    """Both first losses, where this run promises the weights of `single` and they differ by more than rounding."""
    if not run.exact or run is single or not run.losses or not single.losses:
        return None
    comparable = run.device == single.device == "cpu" and run.precision == single.precision == "fp32"
    if not comparable or run.resumed_from or single.resumed_from or run.seed != single.seed:
        return None
    if run.batch_size != single.batch_size:  # a comparison may let batches grow with the ranks
        return None
    mine, theirs = run.losses[0], single.losses[0]
    if mine is None or theirs is None or abs(mine - theirs) <= TOLERANCE * max(abs(mine), abs(theirs)):
        return None
    return mine, theirs


def in_words(mine: float, theirs: float) -> str:
    """Why it matters, for a note or a sentence; the caller says whose loss it is."""
    digits = 6
    while digits < 12 and f"{mine:.{digits}g}" == f"{theirs:.{digits}g}":
        digits += 1
    return (
        f"begins with a loss of {mine:.{digits}g} where one process has {theirs:.{digits}g}: it does not train what one "
        "process trains"
    )
