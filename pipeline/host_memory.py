"""Memory of this host, and the limits that containers and batch jobs set.

They limit their processes by Linux control groups (cgroups), version 1 or 2, and kill one that exceeds the limit.
/proc/meminfo and psutil report only the memory of the machine. See the kernel's Documentation/admin-guide/cgroup-v2.rst
and cgroup-v1/memory.rst, and proc(5) for the two tables.
"""

import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class _Names(NamedTuple):
    """Files of a control group, and the lines of memory.stat that count memory which the kernel can reclaim."""

    limit: str
    used: str
    reclaimable: tuple[str, ...]


_NAMES = {
    "cgroup": _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
    "cgroup2": _Names("memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable")),
}


def total_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory of the machine, or the lowest limit below it.

    Args:
        root: folder that contains /proc and /sys.
    """
    return min([_meminfo(root, "MemTotal"), *(limit for limit, _ in _limits(root))])


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may use, by the lowest limit of a container, a batch job or `ulimit -v`.

    Args:
        root: folder that contains /proc and /sys.

    Returns:
        None without a limit below the memory of the machine.
    """
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    of_process = [] if address_space == resource.RLIM_INFINITY else [address_space]
    lowest = min([*of_process, *(limit for limit, _ in _limits(root))], default=None)
    return lowest if lowest is not None and lowest < _meminfo(root, "MemTotal") else None


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that are available without swapping and without exceeding any limit; 0 or more.

    Args:
        root: folder that contains /proc and /sys.
    """
    rooms = [_meminfo(root, "MemAvailable"), *(limit - used for limit, used in _limits(root))]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        pages = int(_lines(root / "proc/self/statm")[0].split()[0])
        rooms.append(address_space - pages * resource.getpagesize())
    return max(0, min(rooms))


def _meminfo(root: Path, key: str) -> int:
    (value,) = (line.split()[1] for line in _lines(root / "proc/meminfo") if line.startswith(f"{key}:"))
    return int(value) * 1024


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, used) in bytes of each limited control group of this process, from the innermost out."""
    for names, group in _groups(root):
        limit = _lines(group / names.limit)
        if limit and limit[0].isdigit():
            statistics = dict(line.split() for line in _lines(group / "memory.stat"))
            reclaimable = sum(int(statistics.get(name, 0)) for name in names.reclaimable)
            # A group that is being removed has an empty file.
            used = int(next(iter(_lines(group / names.used)), "0")) - reclaimable
            yield int(limit[0]), used


def _groups(root: Path) -> Iterator[tuple[_Names, Path]]:
    """Yield this process's memory control groups in both hierarchies, from the innermost out."""
    own_groups: dict[str, PurePosixPath] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own_groups["cgroup2"] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            own_groups["cgroup"] = PurePosixPath(path)
    for line in _lines(root / "proc/self/mountinfo"):
        before, after = line.split(" - ", 1)
        kind, *_, options = after.split()
        if kind not in own_groups or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        top, mount = before.split()[3:5]
        # A container may see only its group, mounted as the root of the hierarchy.
        own_group = own_groups[kind]
        below = own_group.relative_to(top) if own_group.is_relative_to(top) else PurePosixPath()
        parts = () if ".." in below.parts else below.parts
        for depth in range(len(parts), -1, -1):
            yield _NAMES[kind], root.joinpath(mount.lstrip("/"), *parts[:depth])


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; none if it is missing, like the limit of the outermost group."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
