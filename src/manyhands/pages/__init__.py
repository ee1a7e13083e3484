"""Reports: one self-contained HTML page from runs, and the words and figures of a comparison."""

from .comparing import name_lines
from .comparison_table import Column, columns, comparison_rows
from .page import report
from .words import conclusion, remarks

__all__ = ["Column", "columns", "comparison_rows", "conclusion", "name_lines", "remarks", "report"]
