"""The network between hosts, as people write it and as the formulas need it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.errors import BadInput
from manyhands.studies.plan.link import HOW_TO_WRITE, Link


@pytest.mark.parametrize(
    ("text", "bytes_per_second", "seconds"),
    [
        ("10gbit,50us", 1.25e9, 50e-6),
        ("100mbit,1ms", 12.5e6, 1e-3),
        ("1.5kbit,2s", 187.5, 2.0),
        ("960bit,20ns", 120.0, 20e-9),
        ("400gbit,0s", 5e10, 0.0),
    ],
)
def test_a_link_is_read_and_written(text: str, bytes_per_second: float, seconds: float) -> None:
    assert Link.parse(text) == Link(bytes_per_second, seconds)
    assert str(Link.parse(text)) == text


def test_case_and_spaces_do_not_matter() -> None:
    assert Link.parse(" 10 Gbit , 50 US ") == Link.parse("10gbit,50us")


def test_the_largest_unit_is_written() -> None:
    assert str(Link.parse("10000mbit,2000us")) == "10gbit,2ms"
    assert str(Link.parse("0.5bit,0.5ns")) == "0.5bit,0.5ns"


@settings(derandomize=True, deadline=None)
@given(st.floats(1e-3, 1e15), st.one_of(st.just(0.0), st.floats(1e-15, 1e6)))
def test_every_link_comes_back_to_the_last_bit(bytes_per_second: float, seconds: float) -> None:
    link = Link(bytes_per_second, seconds)
    assert Link.parse(str(link)) == link


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("10gbit", '"10gbit" is not a link'),
        ("", '"" is not a link'),
        ("fast,50us", '"fast" in the link "fast,50us" is not a bandwidth'),
        ("10,50us", '"10" in the link "10,50us" is not a bandwidth'),
        ("10gb,50us", '"10gb" in the link "10gb,50us" is not a bandwidth'),
        ("0gbit,50us", '"0gbit" in the link "0gbit,50us" is not a bandwidth'),
        ("-1gbit,50us", '"-1gbit" in the link "-1gbit,50us" is not a bandwidth'),
        ("10gbit, 50", '"50" in the link "10gbit, 50" is not a latency'),
        ("10gbit,50m", '"50m" in the link "10gbit,50m" is not a latency'),
        ("10gbit,50us,1", '"50us,1" in the link "10gbit,50us,1" is not a latency'),
    ],
)
def test_what_is_not_a_link_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(BadInput) as refusal:
        Link.parse(text)
    assert str(refusal.value) == f"{wrong}; {HOW_TO_WRITE}"


@pytest.mark.parametrize(
    ("bandwidth", "seconds"), [(0, 0), (-1, 0), (math.inf, 0), (math.nan, 0), (1, -1), (1, math.inf)]
)
def test_impossible_links_are_refused(bandwidth: float, seconds: float) -> None:
    with pytest.raises(BadInput) as refusal:
        Link(bandwidth, seconds)
    found = f"bytes_per_second: {bandwidth:g}, seconds: {seconds:g}"
    assert str(refusal.value) == f"a link needs a bandwidth above 0 and a latency of at least 0 ({found})"
