"""Reports: one self-contained HTML page from runs, and the words and figures of a comparison."""

from .figures import Column, columns, name_lines, table
from .page import report
from .words import conclusion, remarks

__all__ = ["Column", "columns", "conclusion", "name_lines", "remarks", "report", "table"]
