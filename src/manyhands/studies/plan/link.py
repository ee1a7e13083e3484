"""The network between hosts: how long a message takes to set out, and how fast its bytes follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from ...errors import BadInput
from .units import number_and_unit

# Powers of ten. Shifting the decimal point of a text is exact; multiplying by 1e-6 is not, and 50us would not come back.
BITS_PER_SECOND = {"gbit": 9, "mbit": 6, "kbit": 3, "bit": 0}
SECONDS = {"s": 0, "ms": -3, "us": -6, "ns": -9}
HOW_TO_WRITE = (
    "write bandwidth and latency as 10gbit,50us (bit, kbit, mbit or gbit per second; ns, us, ms or s), "
    "or name the .json file of a measured link"
)


@dataclass(frozen=True)
class Link:
    """What connects a host to the others: a message of b bytes takes `seconds + b / bytes_per_second`."""

    bytes_per_second: float  # in each direction
    seconds: float  # the latency of a message

    def __post_init__(self) -> None:
        if not (0 < self.bytes_per_second < math.inf and 0 <= self.seconds < math.inf):
            found = f"bytes_per_second: {self.bytes_per_second:g}, seconds: {self.seconds:g}"
            raise BadInput(f"a link needs a bandwidth above 0 and a latency of at least 0 ({found})")

    @classmethod
    def parse(cls, text: str) -> Link:
        """The link that a text such as "10gbit,50us" describes."""
        bandwidth, comma, latency = text.partition(",")
        if not comma:
            raise BadInput(f'"{text}" is not a link; {HOW_TO_WRITE}')
        bits = _read(bandwidth, BITS_PER_SECOND)
        if not bits:
            raise BadInput(f'"{bandwidth.strip()}" in the link "{text}" is not a bandwidth; {HOW_TO_WRITE}')
        seconds = _read(latency, SECONDS)
        if seconds is None:
            raise BadInput(f'"{latency.strip()}" in the link "{text}" is not a latency; {HOW_TO_WRITE}')
        return cls(bits / 8, seconds)

    def __str__(self) -> str:
        """The text that `parse` turns into this link again."""
        return f"{_written(self.bytes_per_second * 8, BITS_PER_SECOND)},{_written(self.seconds, SECONDS)}"


def _read(text: str, units: Mapping[str, int]) -> float | None:
    number, unit = number_and_unit(text) or ("", "")
    amount = float(f"{number}e{units[unit]}") if unit in units else math.inf
    return amount if amount < math.inf else None


def _written(amount: float, units: Mapping[str, int]) -> str:
    """In the largest unit of which there is at least one, else in the smallest; nothing at all is "0s"."""
    exact = Decimal(repr(amount))
    fitting = [unit for unit, power in units.items() if exact.scaleb(-power) >= 1] if amount else ["s"]
    unit = fitting[0] if fitting else [*units][-1]
    return f"{exact.scaleb(-units[unit]).normalize():f}{unit}"
