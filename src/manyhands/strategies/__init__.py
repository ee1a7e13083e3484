"""Strategies: how the work is divided. `contract.py` says what one is, `table.py` lists them, one file each."""

from .table import SHORT as SHORT
from .table import TABLE as TABLE
from .table import check_names as check_names
from .table import declared_strategy as declared_strategy
from .table import make_strategy as make_strategy
from .table import strategy_class as strategy_class
