"""Reports: one self-contained HTML page from runs, and the words and figures of a comparison."""

from .busy import busy_sentence
from .comparing import name_lines
from .comparison_table import Column, columns, comparison_rows, legend
from .figures import hosts, named_hosts
from .forecasts import forecast_sentence
from .page import report
from .scaling_words import scaling_sentences
from .words import conclusion, remarks

__all__ = [
    "Column",
    "busy_sentence",
    "columns",
    "comparison_rows",
    "conclusion",
    "forecast_sentence",
    "hosts",
    "legend",
    "named_hosts",
    "name_lines",
    "remarks",
    "report",
    "scaling_sentences",
]
