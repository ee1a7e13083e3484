"""Amounts as people write them: "80G" of memory, "30d" between failures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ...errors import BadInput

# Memory comes in powers of two. A unit is required: nobody who writes "80" means 80 bytes.
BYTES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Bytes in a text such as "80G" or "512M". Units are binary: 1K is 1024 bytes."""
    amount = _amount(text, BYTES)
    if amount is None or amount < 1:
        raise BadInput(f'"{text}" is not a size; write a number with B, K, M, G or T, such as 80G or 512M')
    return round(amount)


def parse_seconds(text: str) -> float:
    """Seconds in a text such as "45s", "30m", "1h" or "2d"."""
    amount = _amount(text, SECONDS)
    if amount is None:
        raise BadInput(f'"{text}" is not a duration; write a number with s, m, h or d, such as 45s, 30m, 1h or 2d')
    return amount


def number_and_unit(text: str) -> tuple[str, str] | None:
    """The two parts of "80G", the unit in lower case; None where the text is anything but a number with a unit."""
    match = _AMOUNT.fullmatch(text.strip().lower())
    return (match[1], match[2]) if match else None


def _amount(text: str, units: Mapping[str, int]) -> float | None:
    number, unit = number_and_unit(text) or ("", "")
    amount = float(number) * units[unit] if unit in units else math.inf
    return amount if amount < math.inf else None
