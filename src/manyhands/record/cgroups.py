"""The control groups of this process: the folders in which Linux keeps its limits, from its own group up to the root."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

SYSTEM = Path("/")  # tests hand in a folder that looks like one


def group_folders(controller: str, root: Path = SYSTEM) -> list[Path]:
    """Every folder whose limits of this controller hold here: version 1 and 2, own group first, then its parents.

    A limit of any of them counts. Inside a container the groups above the mount cannot be seen: then those that can be
    seen are given.
    """
    own = _own_groups(root)
    folders = []
    for kind, at, point, controllers in _mounts(root):
        if kind == "cgroup2":
            path = own.get("")
        elif controller in controllers:
            path = own.get(controller)
        else:
            continue
        folders += _upwards(point, _below(path, at))
    return [folder for folder in folders if folder.is_dir()]


def read_number(file: Path) -> int | None:
    """The number a file of a group holds; None where there is none, or no limit (`max`, -1)."""
    text = read_words(file)
    return int(text[0]) if text and text[0].isdigit() else None


def read_words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _own_groups(root: Path) -> dict[str, str]:
    """Controller -> path of this process's group; the one of version 2 has no controller's name."""
    groups = {}
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _mounts(root: Path) -> list[tuple[str, str, Path, set[str]]]:
    """(kind, group at the mount's root, mount point, its options) of every mounted hierarchy."""
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    mounts = []
    for line in lines:
        before, _, after = line.partition(" - ")
        what, kind = before.split(), after.split()
        if len(what) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
            mounts.append((kind[0], what[3], root / what[4].lstrip("/"), set(kind[2].split(","))))
    return mounts


def _below(path: str | None, at: str) -> PurePosixPath:
    """The group's path below the mount, whose root may be a group itself (as Docker mounts it)."""
    if path is None or "/.." in path:
        return PurePosixPath()
    try:
        return PurePosixPath(path).relative_to(at)
    except ValueError:
        return PurePosixPath()


def _upwards(point: Path, below: PurePosixPath) -> list[Path]:
    """The group, its parents, and the mount itself."""
    inner = point / below
    return [inner, *(parent for parent in inner.parents if parent.is_relative_to(point))] if below.parts else [point]
