"""The share of a quota's periods that were used up."""

from __future__ import annotations

from pathlib import Path

from manyhands.record.throttling import Throttling


def test_periods_since_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text("usage_usec 1\nnr_periods 100\nnr_throttled 50\n")
    meter = Throttling(tmp_path)
    meter.begin()
    assert meter.share() == 0.0
    (group / "cpu.stat").write_text("usage_usec 9\nnr_periods 140\nnr_throttled 80\n")
    assert meter.share() == 0.75
    (group / "cpu.stat").unlink()
    assert meter.share() == 0.0
