"""The cores one may use: affinity, cpuset and the quotas of control groups, of either version and however deep."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.record import cores as module
from manyhands.record.cores import available_cores, usable_cores

V2 = "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 {at} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


def system(root: Path, own: str, mounts: str, files: dict[str, str]) -> Path:
    """A folder that looks like a machine."""
    for name, text in {"proc/self/cgroup": own, "proc/self/mountinfo": mounts, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(16)))


def test_without_groups_the_affinity_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores(tmp_path) == module.Cores(16, 16, 16, None, None)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {3})
    assert usable_cores(tmp_path) == module.Cores(1, 16, 1, None, "affinity")


@pytest.mark.parametrize(
    ("maximum", "count", "quota"),
    [("max 100000", 16, None), ("150000 100000", 2, 1.5), ("20000 100000", 1, 0.2), ("3200000 100000", 16, 32.0)],
)
def test_the_quota_of_version_2_is_rounded_up(tmp_path: Path, maximum: str, count: int, quota: float | None) -> None:
    root = system(tmp_path, "0::/user/job\n", V2, {"sys/fs/cgroup/user/job/cpu.max": maximum})
    found = usable_cores(root)
    assert (found.count, found.quota) == (count, quota)
    assert found.limited_by == ("quota" if count < 16 else None)


def test_the_strictest_of_nested_groups_counts(tmp_path: Path) -> None:
    """A pod's limit holds for its containers, whatever these say themselves."""
    files = {
        "sys/fs/cgroup/pod/one/deep/cpu.max": "max 100000",
        "sys/fs/cgroup/pod/one/cpu.max": "800000 100000",
        "sys/fs/cgroup/pod/cpu.max": "400000 100000",
    }
    assert usable_cores(system(tmp_path, "0::/pod/one/deep\n", V2, files)).count == 4


def test_the_quota_of_version_1_is_seen(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/batch/"
    files = {folder + "cpu.cfs_quota_us": "300000\n", folder + "cpu.cfs_period_us": "100000\n"}
    own = "4:cpu,cpuacct:/batch\n1:name=systemd:/elsewhere\n0::/\n"
    assert usable_cores(system(tmp_path, own, V1.format(at="/"), files)).count == 3
    (tmp_path / folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(tmp_path).quota is None


def test_a_group_mounted_as_the_root_is_found(tmp_path: Path) -> None:
    """Docker with version 1: the container sees its own group where the root would be, under a path it cannot see."""
    folder = "sys/fs/cgroup/cpu,cpuacct/"
    files = {folder + "cpu.cfs_quota_us": "200000", folder + "cpu.cfs_period_us": "100000"}
    root = system(tmp_path, "4:cpu,cpuacct:/docker/ab12\n", V1.format(at="/docker/ab12"), files)
    assert usable_cores(root).count == 2
    (root / "proc/self/cgroup").write_text("4:cpu,cpuacct:/../other\n")
    assert usable_cores(root).count == 2


def test_version_1_and_2_side_by_side_are_both_read(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/unified/job/cpu.max": "500000 100000",
    }
    both = V1.format(at="/") + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    assert usable_cores(system(tmp_path, "1:cpu,cpuacct:/\n0::/job\n", both, files)).count == 5


def test_a_cpuset_is_told_from_an_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1, 2, 5})
    root = system(tmp_path, "0::/job\n", V2, {"sys/fs/cgroup/job/cpuset.cpus.effective": "0-2,5\n"})
    assert usable_cores(root).limited_by == "cpuset"
    (root / "sys/fs/cgroup/job/cpuset.cpus.effective").write_text("0-15\n")
    assert usable_cores(root).limited_by == "affinity"


def test_defaults_follow_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of two cores on a machine of sixteen once made sixteen ranks, and eight threads for each of two."""
    from manyhands.studies.compare import contenders
    from manyhands.world import devices

    root = system(tmp_path, "0::/job\n", V2, {"sys/fs/cgroup/job/cpu.max": "400000 100000"})
    monkeypatch.setattr(module, "usable_cores", lambda: usable_cores(root))
    monkeypatch.setattr(devices.torch.cuda, "device_count", lambda: 0)
    assert devices.default_ranks() == available_cores() == 4
    assert [row.threads for row in contenders(["ddp"], 2, None)] == [2, 4, 2]
