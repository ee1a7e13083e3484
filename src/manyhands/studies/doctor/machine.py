"""What the machine has and what it grants: cores, threads, memory, shared memory, files, versions."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from pathlib import Path

from ...record.cgroups import SYSTEM, group_folders, read_number
from ...record.cores import Cores, usable_cores
from .check import Check, amount, ok, problem, size, warning

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
OLDEST = (2, 11)  # of torch
SHARED = Path("/dev/shm")
FEW_FILES, SMALL_SHARED = 1024, 1 << 28
UNLIMITED = 1 << 60  # version 1 of control groups writes "no limit" as a huge number


def check_cores(cores: Cores | None = None) -> Check:
    found = cores or usable_cores()
    if found.limited_by is None:
        return ok("cores", f"all {amount(found.count, 'core')} of this machine may be used")
    why, advice = {
        "quota": (
            f"a control group grants the time of {found.quota or 0:g} cores",
            "raise the quota (docker run --cpus, limits of the pod) or keep to so many ranks x threads",
        ),
        "cpuset": (
            "the cpuset of its control group has no more",
            "widen the cpuset (docker run --cpuset-cpus), or keep to it",
        ),
        "affinity": (
            "the affinity of this process has no more (taskset, or a scheduler)",
            "start without taskset or ask the scheduler for more, or keep to it",
        ),
    }[found.limited_by]
    return warning("cores", f"{found.count} of {found.machine} cores may be used: {why}", advice)


def check_processes(cores: int, ranks: int, threads: int | None, workers: int) -> Check:
    """Ranks, their threads and their loader workers against the cores."""
    each = threads or max(1, cores // ranks)
    words = f"{amount(ranks, 'rank')} x {amount(each, 'thread')}"
    words += f", with {amount(ranks * workers, 'loader worker')}" if workers else ""
    if ranks > cores:
        return warning("threads", f"{words} on {amount(cores, 'core')}: ranks take turns", f"--ranks {cores}")
    if ranks * each > cores:
        return warning(
            "threads",
            f"{words} on {amount(cores, 'core')}: threads that wait for each other make steps many times slower",
            f"--threads {max(1, cores // ranks)}, the default",
        )
    if ranks * (each + workers) > 2 * cores:
        return warning(
            "threads",
            f"{words} on {amount(cores, 'core')}: more than can help, unless loading mostly waits",
            "--loader-workers auto measures how many help",
        )
    return ok("threads", f"{words} on {amount(cores, 'core')}")


def check_environment(cores: int, ranks: int) -> Check:
    """Threads the user's environment asks for: torch's own are set by a fit, those of other libraries are not."""
    asked = {name: value for name in THREADS if (value := os.environ.get(name))}
    if not asked:
        return ok("environment", "OMP_NUM_THREADS and the like are not set: a fit chooses the threads")
    words = ", ".join(f"{name}={value}" for name, value in asked.items())
    most = max((int(value) for value in asked.values() if value.isdigit()), default=1)
    if most * ranks <= cores:
        return ok("environment", f"{words}; torch's threads are set by each fit")
    return warning(
        "environment",
        f"{words}: {most * ranks} threads for {amount(ranks, 'rank')} on {amount(cores, 'core')}; a fit sets torch's threads "
        "itself, but numpy and scripts under `manyhands run` follow it",
        f"unset {' '.join(asked)}, or set it to {max(1, cores // ranks)}",
    )


def free_memory(root: Path = SYSTEM) -> int:
    """Bytes that can be had: of the machine, or of the strictest of our control groups."""
    import psutil

    free = [psutil.virtual_memory().available]
    for folder in group_folders("memory", root):
        limit = read_number(folder / "memory.max") or read_number(folder / "memory.limit_in_bytes")
        used = read_number(folder / "memory.current") or read_number(folder / "memory.usage_in_bytes")
        if limit and limit < UNLIMITED:
            free.append(max(0, limit - (used or 0) + _cache(folder)))
    return min(free)


def _cache(folder: Path) -> int:
    """Bytes of files that a group only keeps in case they are read again."""
    try:
        lines = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(lines.get("total_inactive_file", lines.get("inactive_file", "0")))


def check_memory(root: Path = SYSTEM) -> Check:
    import psutil

    free, total, swap = free_memory(root), psutil.virtual_memory().total, psutil.swap_memory()
    words = f"{size(free)} of {size(total)} are available"
    if swap.used > 0.1 * total:
        return warning(
            "memory",
            f"{words}, and {size(swap.used)} are swapped out: whatever needs them waits for the disk",
            "end programs that hold memory",
        )
    if free < 5e8:
        return warning("memory", words, "end programs that hold memory, or raise the limit of the control group")
    return ok("memory", words)


def check_shared_memory(needed: int = 0, folder: Path = SHARED) -> Check:
    """Loader workers hand large batches over through /dev/shm; ranks talk through anonymous memory, which has no limit."""
    if not folder.is_dir():
        return ok("shm", f"there is no {folder}: nothing here needs it")
    space = shutil.disk_usage(folder)
    words = f"{size(space.free)} of {size(space.total)} free in {folder}"
    bigger = "enlarge it (docker run --shm-size=2g; mount -o remount,size=2g /dev/shm)"
    if needed > space.free:
        return problem("shm", f"{words}; batches of the loader workers need about {size(needed)}", bigger)
    if space.free < SMALL_SHARED:
        return warning("shm", f"{words}: not much for loader workers (the ranks do not need it)", bigger)
    return ok("shm", f"{words}, for loader workers")


def check_files(ranks: int, workers: int) -> Check:
    """Open files: sockets to every rank here; on a rank pipes and batches of its loader workers."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(32 + 4 * ranks, 32 + 24 * workers)
    words = f"{limit} open files allowed (ulimit -n), about {needed} needed"
    allowed = 4096 if most == resource.RLIM_INFINITY else min(most, 4096)
    higher = f"ulimit -n {allowed}" if allowed > limit else "ulimit -n 4096 in a new shell, or as root"
    if limit != resource.RLIM_INFINITY and limit < needed:
        return problem("files", words, higher)
    if limit != resource.RLIM_INFINITY and limit < FEW_FILES:
        return warning("files", f"{words}: not much for data sets of many files and loader workers", higher)
    return ok("files", words)


def check_versions(torch_version: str, python: str | None = None) -> Check:
    from ...model.torch_internals import TESTED

    python = python or platform.python_version()
    words = f"torch {torch_version}, Python {python}"
    numbers = torch_version.split("+")[0].split(".")
    known = len(numbers) >= 2 and numbers[0].isdigit() and numbers[1].isdigit()
    version = (int(numbers[0]), int(numbers[1])) if known else TESTED
    if version < OLDEST:
        return problem("versions", f"{words}: too old", f"install torch {'.'.join(map(str, OLDEST))} or newer")
    if version > TESTED:
        return warning(
            "versions",
            f"{words}: newer than {'.'.join(map(str, TESTED))}, the newest that was tested",
            "if something fails, try an older torch",
        )
    return ok("versions", words)


def check_governor(root: Path = SYSTEM) -> list[Check]:
    """A core that is kept slow on purpose; nothing is said where the system does not tell."""
    folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
    try:
        governor, driver = (folder / "scaling_governor").read_text().strip(), (folder / "scaling_driver").read_text()
    except OSError:
        return []
    if governor == "powersave" and "pstate" not in driver:  # Intel's and AMD's own drivers speed up all the same
        return [warning("governor", "cores are kept at their lowest speed", "cpupower frequency-set -g performance")]
    return [ok("governor", f"speed of the cores: {governor}")]
