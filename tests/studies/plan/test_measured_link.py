"""A link that was measured: what its file says, and what is refused. tests/world/test_hosts.py measures one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import BadInput
from manyhands.studies.plan.link import Link
from manyhands.studies.plan.measured_link import SIZES, fitted, link_of, measure


def times(link: Link) -> dict[int, float]:
    return {size: link.seconds + size / link.bytes_per_second for size in SIZES}


@pytest.mark.parametrize("text", ["10gbit,50us", "100mbit,1ms", "1gbit,0s", "56kbit,200ms"])
def test_what_follows_a_link_exactly_gives_that_link(text: str) -> None:
    link = Link.parse(text)
    assert fitted(times(link)) == link


def test_small_messages_tell_the_latency_although_large_ones_are_off() -> None:
    """Errors in seconds would be those of the largest message alone: a tenth of it is a hundred latencies."""
    link = Link.parse("1gbit,100us")
    measured = times(link)
    measured[SIZES[-1]] *= 1.1
    assert fitted(measured).seconds == pytest.approx(link.seconds, rel=0.05)


def test_one_odd_message_changes_nothing() -> None:
    """gloo's shortest message took 1.8 ms on a link of 40 microseconds, and a burst lets the first ones pass for nothing."""
    link = Link.parse("1gbit,100us")
    measured = times(link)
    measured[SIZES[0]] *= 40
    measured[SIZES[3]] /= 5
    found = fitted(measured)
    assert found.seconds == pytest.approx(link.seconds, rel=0.05)
    assert found.bytes_per_second == pytest.approx(link.bytes_per_second, rel=0.02)


def test_a_latency_is_never_below_zero() -> None:
    found = fitted({1000: 1e-6, 10**6: 2e-3})
    assert found.seconds == 0
    assert found.bytes_per_second > 0


def test_larger_messages_that_take_no_longer_are_refused() -> None:
    with pytest.raises(BadInput, match=r"took no longer than small ones \(1000 bytes: 0.002 s, 2000 bytes: 0.001 s\)"):
        fitted({1000: 2e-3, 2000: 1e-3})


def test_a_file_by_hand_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"messages": [{"bytes": 1000, "seconds": 2e-4}, {"bytes": 10**6, "seconds": 1e-2}]}))
    assert link_of(str(file)).bytes_per_second == pytest.approx(999_000 / 9.8e-3, rel=1e-2)
    assert link_of("10gbit,50us") == Link.parse("10gbit,50us")


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"messages": 5},
        {"messages": [{"bytes": 1000, "seconds": 1e-3}]},
        {"messages": [{"bytes": 1000, "seconds": 1e-3}, {"bytes": 2000}]},
        {"messages": [{"bytes": 1000, "seconds": 1e-3}, {"bytes": 2000, "seconds": "long"}]},
        {"messages": [{"bytes": 1000, "seconds": 1e-3}, {"bytes": 2000, "seconds": 0}]},
        {"messages": [{"bytes": 1000, "seconds": 1e-3}, {"bytes": 2000, "seconds": float("nan")}]},
        {"messages": ["1000", "2000"]},
    ],
)
def test_files_that_say_nothing_are_refused(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "link.json"
    file.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r'needs "messages" of two sizes or more, such as \{"bytes": 1024'):
        link_of(str(file))


def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nosuch\.json cannot be read \(No such file or directory\)"):
        link_of(str(tmp_path / "nosuch.json"))
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(BadInput, match=r"half\.json is not JSON"):
        link_of(str(tmp_path / "half.json"))


def test_one_host_has_no_link(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"one process on each of two hosts \(hosts: 1\); use --on slurm:nodes=2"):
        measure(tmp_path / "link.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["link.txt", "nosuch/link.json"])
def test_where_it_cannot_be_kept_is_refused_before_anything_starts(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"in a folder that exists, its name ending with \.json"):
        measure(tmp_path / name)
