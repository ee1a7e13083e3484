"""What the doctor says of a machine, with machines made up by the test."""

from __future__ import annotations

import resource
import shutil
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from manyhands.record.cores import Cores
from manyhands.studies.doctor import machine
from manyhands.studies.doctor.check import Check, size

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("cores", "status", "words"),
    [
        (Cores(8, 8, 8, None, None), "ok", "all 8 cores"),
        (Cores(1, 8, 1, None, "affinity"), "warning", "1 of 8 cores may be used: the affinity of this process"),
        (Cores(2, 8, 2, None, "cpuset"), "warning", "2 of 8 cores may be used: the cpuset"),
        (
            Cores(2, 8, 8, 1.5, "quota"),
            "warning",
            "2 of 8 cores may be used: a control group grants the time of 1.5 cores",
        ),
    ],
)
def test_cores_are_told_with_what_limits_them(cores: Cores, status: str, words: str) -> None:
    check = machine.check_cores(cores)
    assert check.status == status
    assert words in check.message
    assert bool(check.advice) == (status != "ok")


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ((4, 2, None, 0), None),
        ((2, 4, None, 0), "--ranks 2"),
        ((4, 2, 4, 0), "--threads 2, the default"),
        ((4, 2, 1, 8), "--loader-workers auto measures how many help"),
        ((4, 2, 1, 2), None),
    ],
)
def test_ranks_threads_and_workers_against_cores(asked: tuple[int, int, int | None, int], advice: str | None) -> None:
    assert machine.check_processes(*asked).advice == advice


def test_threads_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in machine.THREADS:
        monkeypatch.delenv(name, raising=False)
    assert machine.check_environment(2, 2).status == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    check = machine.check_environment(2, 2)
    assert check.status == "warning"
    assert "OMP_NUM_THREADS=8: 16 threads for 2 ranks on 2 cores" in check.message
    assert check.advice == "unset OMP_NUM_THREADS, or set it to 1"
    assert machine.check_environment(32, 2).status == "ok"


def test_memory_is_that_of_the_strictest_group(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/pod/job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/job\n")
    (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert machine.free_memory(tmp_path) > 1e8
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("100000000\n")
    (group.parent / "memory.current").write_text("70000000\n")
    (group.parent / "memory.stat").write_text("anon 5\ninactive_file 20000000\n")
    assert machine.free_memory(tmp_path) == 50_000_000
    assert "50.0 MB of" in machine.check_memory(tmp_path).message
    assert machine.check_memory(tmp_path).status == "warning"


def test_swapping_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = namedtuple("Memory", "total available")(10**10, 8 * 10**9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(psutil, "swap_memory", lambda: namedtuple("Swap", "used")(2 * 10**9))
    check = machine.check_memory(Path("/nowhere"))
    assert (check.status, "2.0 GB are swapped out" in check.message) == ("warning", True)


@pytest.mark.parametrize(("free", "needed", "status"), [(9e9, 0, "ok"), (6e7, 0, "warning"), (6e7, 10**9, "problem")])
def test_shared_memory(free: float, needed: int, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1e10, 0, free))
    check = machine.check_shared_memory(needed, tmp_path)
    assert check.status == status
    assert status == "ok" or "--shm-size" in str(check.advice)
    assert machine.check_shared_memory(0, tmp_path / "missing").status == "ok"


@pytest.mark.parametrize(
    ("limit", "ranks", "workers", "status"),
    [(4096, 2, 0, "ok"), (256, 2, 0, "warning"), (256, 64, 0, "problem"), (256, 2, 16, "problem")],
)
def test_open_files(limit: int, ranks: int, workers: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, 524288))
    check = machine.check_files(ranks, workers)
    assert check.status == status
    assert check.advice == (None if status == "ok" else "ulimit -n 4096")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert machine.check_files(64, 0).advice == "ulimit -n 4096 in a new shell, or as root"


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.10.1", "problem"),
        ("2.11.0+cpu", "ok"),
        ("2.15.0+cu130", "ok"),
        ("2.16.0a0+git12", "warning"),
        ("weird", "ok"),
    ],
)
def test_versions(version: str, status: str) -> None:
    assert machine.check_versions(version).status == status


def test_a_slow_governor(tmp_path: Path) -> None:
    assert machine.check_governor(tmp_path) == []
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text("powersave\n")
    (folder / "scaling_driver").write_text("acpi-cpufreq\n")
    assert [check.status for check in machine.check_governor(tmp_path)] == ["warning"]
    (folder / "scaling_driver").write_text("intel_pstate\n")
    assert machine.check_governor(tmp_path) == [Check("governor", "ok", "speed of the cores: powersave")]


def test_sizes_in_words() -> None:
    assert [size(count) for count in (2.5e10, 3e8, 4e5)] == ["25.0 GB", "300 MB", "0.4 MB"]
