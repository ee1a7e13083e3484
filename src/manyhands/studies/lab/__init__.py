"""Published experiments run again on the machine at hand, their figures beside those that were published."""

from .experiment import Column, Curve, Experiment, Line, Part, Scale, Verdict
from .table import Row, Table, by_epoch, over

__all__ = [  # what a file that defines EXPERIMENT needs
    "Column",
    "Curve",
    "Experiment",
    "Line",
    "Part",
    "Row",
    "Scale",
    "Table",
    "Verdict",
    "by_epoch",
    "over",
]
