"""Memory that this process may use: of the machine, or less where a control group says so. On made-up trees."""

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.host_memory import available_memory, total_memory

_GIB = 2**30
_TOTAL, _AVAILABLE = 64 * _GIB, 48 * _GIB
_UNLIMITED_1 = 9223372036854771712  # what version 1 shows for no limit


class Group(NamedTuple):
    """A control group's memory in bytes; `cached` is the part of `used` that the kernel would give back."""

    limit: int | None
    used: int = 0
    cached: int = 0


def _machine(root: Path, *, groups: str = "", mounts: str = "") -> Path:
    proc = root / "proc" / "self"
    proc.mkdir(parents=True, exist_ok=True)
    meminfo = f"MemTotal: {_TOTAL // 1024} kB\nMemFree: 5 kB\nMemAvailable: {_AVAILABLE // 1024} kB\n"
    (root / "proc" / "meminfo").write_text(meminfo)
    (proc / "cgroup").write_text(groups)
    (proc / "mountinfo").write_text(f"22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n{mounts}")
    return root


def _write(folder: Path, group: Group, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        limit, names, cached = group.limit or "max", ("memory.max", "memory.current"), ("active_file", "inactive_file")
    else:
        limit, names = group.limit or _UNLIMITED_1, ("memory.limit_in_bytes", "memory.usage_in_bytes")
        cached = ("total_active_file", "total_inactive_file")
    for name, value in zip(names, (limit, group.used), strict=True):
        (folder / name).write_text(f"{value}\n")
    again = group.cached // 3  # read twice
    lines = (f"{cached[0]} {again}", f"{cached[1]} {group.cached - again}", "slab 9")
    (folder / "memory.stat").write_text("\n".join(("anon 7", "inactive_anon 3", *lines)) + "\n")


_V2 = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
_V1 = (
    "30 22 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def _chain(root: Path, groups: Sequence[Group], version: int) -> Path:
    """The process is in the last of nested groups; the outermost of version 2 has no files, as on real machines."""
    path = "/".join(f"g{depth}" for depth in range(len(groups)))
    top = root / "sys/fs/cgroup" / ("" if version == 2 else "memory")
    for depth, group in enumerate(groups):
        _write(top.joinpath(*(f"g{level}" for level in range(depth + 1))), group, version)
    listed = f"0::/{path}\n" if version == 2 else f"3:cpu:/elsewhere\n4:hugetlb,memory:/{path}\n"
    return _machine(root, groups=listed, mounts=_V2 if version == 2 else _V1)


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    _machine(tmp_path)
    assert (total_memory(tmp_path), available_memory(tmp_path)) == (_TOTAL, _AVAILABLE)
    (tmp_path / "proc/self/cgroup").unlink()
    assert (total_memory(tmp_path), available_memory(tmp_path)) == (_TOTAL, _AVAILABLE)


def test_a_limit_of_the_address_space_leaves_what_is_not_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(tmp_path)
    page = resource.getpagesize()
    (tmp_path / "proc/self/statm").write_text(f"{_GIB // page} 5 5 5 0 5 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (_GIB + 7 * page, resource.RLIM_INFINITY))
    assert available_memory(tmp_path) == 7 * page


@pytest.mark.parametrize("version", [1, 2])
def test_job_has_its_limit_minus_memory_that_cannot_be_freed(tmp_path: Path, version: int) -> None:
    """As Slurm nests them: node, job, step."""
    job = [Group(None, 20 * _GIB), Group(4 * _GIB, 3 * _GIB, _GIB), Group(None, 3 * _GIB)]
    _chain(tmp_path, job, version)
    assert (total_memory(tmp_path), available_memory(tmp_path)) == (4 * _GIB, 2 * _GIB)


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_above_its_limit_leaves_nothing(tmp_path: Path, version: int) -> None:
    _chain(tmp_path, [Group(_GIB, 2 * _GIB)], version)
    assert available_memory(tmp_path) == 0


def test_the_usage_of_a_group_that_is_being_removed_is_empty(tmp_path: Path) -> None:
    _chain(tmp_path, [Group(2 * _GIB, _GIB)], 2)
    (tmp_path / "sys/fs/cgroup/g0/memory.current").write_text("")
    assert available_memory(tmp_path) == 2 * _GIB


groups = st.builds(Group, st.none() | st.integers(1, 2 * _TOTAL), st.integers(0, _TOTAL), st.integers(0, _GIB))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(groups, min_size=1, max_size=4), st.sampled_from([1, 2]))
def test_the_tightest_of_all_groups_decides(
    tmp_path_factory: pytest.TempPathFactory, chain: list[Group], version: int
) -> None:
    root = _chain(tmp_path_factory.mktemp("machine"), chain, version)
    limited = [group for group in chain if group.limit is not None]
    left = [group.limit - group.used + group.cached for group in limited if group.limit is not None]
    assert available_memory(root) == max(0, min([_AVAILABLE, *left]))
    assert total_memory(root) == min([_TOTAL, *(group.limit for group in limited if group.limit is not None)])


def test_a_container_with_a_namespace_of_its_own(tmp_path: Path) -> None:
    """Its group is what is mounted, and its name is /."""
    _machine(tmp_path, groups="0::/\n", mounts=_V2)
    _write(tmp_path / "sys/fs/cgroup", Group(2 * _GIB, _GIB), 2)
    assert available_memory(tmp_path) == _GIB


def test_a_container_that_sees_the_hosts_names(tmp_path: Path) -> None:
    """The mount begins inside the hierarchy; the path in /proc/self/cgroup does not."""
    mounts = "32 22 0:28 /docker/4f2a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    _machine(tmp_path, groups="4:memory:/docker/4f2a/worker\n", mounts=mounts)
    _write(tmp_path / "sys/fs/cgroup/memory", Group(4 * _GIB, 3 * _GIB), 1)
    _write(tmp_path / "sys/fs/cgroup/memory/worker", Group(2 * _GIB), 1)
    assert (total_memory(tmp_path), available_memory(tmp_path)) == (2 * _GIB, _GIB)


@pytest.mark.parametrize(("top", "path"), [("/", "/../host"), ("/pod", "/of/another/tree")])
def test_a_group_outside_the_mount_is_that_of_the_mount(tmp_path: Path, top: str, path: str) -> None:
    mounts = f"30 22 0:26 {top} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    _machine(tmp_path, groups=f"0::{path}\n", mounts=mounts)
    _write(tmp_path / "sys/fs/cgroup", Group(_GIB), 2)
    _write(tmp_path / "sys/fs/host", Group(1), 2)
    assert available_memory(tmp_path) == _GIB


def test_both_versions_at_once(tmp_path: Path) -> None:
    """Memory is counted by the older one; the newer has none of its files."""
    unified = "33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    _machine(tmp_path, groups="4:memory:/job\n0::/job\n", mounts=_V1 + unified)
    _write(tmp_path / "sys/fs/cgroup/memory/job", Group(_GIB), 1)
    (tmp_path / "sys/fs/cgroup/unified/job").mkdir(parents=True)
    assert available_memory(tmp_path) == _GIB


def test_this_machine_says_what_is_free() -> None:
    assert 10**6 < available_memory() <= total_memory() < 10**14
