"""Sizes and durations as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.errors import BadInput
from manyhands.studies.plan.units import BYTES, SECONDS, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "found"),
    [("80G", 80 * 2**30), ("512M", 512 * 2**20), ("1.5k", 1536), ("1T", 2**40), (" 7 B ", 7), ("1b", 1)],
)
def test_sizes(text: str, found: int) -> None:
    assert parse_bytes(text) == found
    assert isinstance(parse_bytes(text), int)


@pytest.mark.parametrize(
    ("text", "found"), [("45s", 45), ("30m", 1800), ("1h", 3600), ("2d", 172800), ("0.5H", 1800), ("0s", 0)]
)
def test_durations(text: str, found: float) -> None:
    assert parse_seconds(text) == found


@pytest.mark.parametrize("text", ["", "80", "G", "80GB", "-1G", "0G", "80 G B", "1e3G", "nanG", "٣G", "9" * 400 + "G"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refusal:
        parse_bytes(text)
    assert str(refusal.value) == f'"{text}" is not a size; write a number with B, K, M, G or T, such as 80G or 512M'


@pytest.mark.parametrize("text", ["", "30", "m", "30 minutes", "-1h", "1h30m", "5ms", "inf d"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refusal:
        parse_seconds(text)
    how = "write a number with s, m, h or d, such as 45s, 30m, 1h or 2d"
    assert str(refusal.value) == f'"{text}" is not a duration; {how}'


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 10**6), st.sampled_from(sorted(BYTES)), st.sampled_from(sorted(SECONDS)))
def test_whole_numbers_are_exact(number: int, size: str, duration: str) -> None:
    assert parse_bytes(f"{number}{size}") == number * BYTES[size]
    assert parse_seconds(f"{number}{duration}") == number * SECONDS[duration]


@settings(derandomize=True, deadline=None)
@given(st.text("0123456789.,eE+- bkKmMgGtTsShHdD", max_size=8))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_bytes, parse_seconds):
        with contextlib.suppress(BadInput):
            assert parse(text) >= 0
