"""Main memory that this process may use: the machine's, or less in a container or a batch job.

Both keep their processes within a limit by Linux control groups (cgroups), of version 1 or 2, and end
one that goes beyond. /proc/meminfo, and psutil with it, knows the machine alone. See the kernel's
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst, and proc(5) for the two tables.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class _Names(NamedTuple):
    """Files of a group, and the lines of memory.stat that count what the kernel drops when memory is short."""

    limit: str
    used: str
    droppable: tuple[str, ...]


_NAMES = {
    "cgroup": _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
    "cgroup2": _Names("memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable")),
}


def total_bytes(root: Path = Path("/")) -> int:
    """Memory of the machine, or the tightest limit below it.

    Args:
        root: where /proc and /sys are.
    """
    return min([_meminfo(root, "MemTotal"), *(limit for limit, _ in _limits(root))])


def available_bytes(root: Path = Path("/")) -> int:
    """What could be used now without swapping, and without exceeding any limit; 0 or more.

    Args:
        root: where /proc and /sys are.
    """
    return max(0, min([_meminfo(root, "MemAvailable"), *(limit - used for limit, used in _limits(root))]))


def _meminfo(root: Path, key: str) -> int:
    (value,) = (line.split()[1] for line in _lines(root / "proc/meminfo") if line.startswith(f"{key}:"))
    return int(value) * 1024


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of every group that this process is in, with those around it, where there is a limit."""
    for names, group in _groups(root):
        limit = _lines(group / names.limit)
        if limit and limit[0].isdigit():
            statistics = dict(line.split() for line in _lines(group / "memory.stat"))
            droppable = sum(int(statistics.get(name, 0)) for name in names.droppable)
            used = int(_lines(group / names.used)[0]) - droppable
            yield int(limit[0]), used


def _groups(root: Path) -> Iterator[tuple[_Names, Path]]:
    """This process's memory groups in both hierarchies, from the innermost out."""
    own: dict[str, PurePosixPath] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own["cgroup2"] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            own["cgroup"] = PurePosixPath(path)
    for line in _lines(root / "proc/self/mountinfo"):
        before, after = line.split(" - ", 1)
        kind, *_, options = after.split()
        if kind not in own or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        top, mount = before.split()[3:5]
        # A container may see its own group alone, mounted as if it were the whole hierarchy.
        below = own[kind].relative_to(top) if own[kind].is_relative_to(top) else PurePosixPath()
        parts = () if ".." in below.parts else below.parts
        for depth in range(len(parts), -1, -1):
            yield _NAMES[kind], root.joinpath(mount.lstrip("/"), *parts[:depth])


def _lines(path: Path) -> list[str]:
    """Nothing for a file that is not there, as that of the outermost group's limit."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
