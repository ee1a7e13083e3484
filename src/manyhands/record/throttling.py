"""Throttling: how much of the time a quota of CPU time has kept our processes waiting."""

from __future__ import annotations

import time
from pathlib import Path

from .cgroups import SYSTEM, group_folders


class Throttling:
    """Call `begin`, do something, and ask."""

    def __init__(self, root: Path = SYSTEM) -> None:
        self._root = root
        self._begun: tuple[float, list[int]] = (0.0, [])

    def begin(self) -> None:
        self._begun = time.monotonic(), self._counts()

    def share(self) -> float:
        """Of the quota's periods since `begin`, those in which it was used up; 0 where there is no quota."""
        spent = [end - start for end, start in zip(self._counts(), self._begun[1], strict=False)]
        shares = [used / periods for periods, used in zip(spent[::2], spent[1::2], strict=True) if periods > 0]
        return max(shares, default=0.0)

    def _counts(self) -> list[int]:
        """Periods, and those in which all was used up, of every group we are in."""
        counts = []
        for folder in group_folders("cpu", self._root):
            try:
                found = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            except (OSError, ValueError):
                continue
            counts += [int(found.get("nr_periods", 0)), int(found.get("nr_throttled", 0))]
        return counts
