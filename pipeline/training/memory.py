"""Memory that a batch needs and that host and device have, and the micro-batch chosen from both.

Containers and batch jobs limit their processes by Linux control groups (cgroups), version 1 or 2, and kill one that
exceeds the limit. /proc/meminfo and psutil report only the memory of the machine. See the kernel's
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst, and proc(5) for the two tables.
"""

import resource
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import BatchSlice
from pipeline.errors import InputError, OutOfMemory, is_out_of_memory

CPU_MICRO_BATCH = 512
"""Larger passes are no faster on a CPU and exceed its caches."""
# Fraction of the available memory; gradients, optimizer state and other processes need the rest.
_CPU_SHARE = 0.5


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


@cache
def _free_at_start() -> int:
    """Return the memory that was available at the first call in this process.

    Later calls would count as used what the process has freed but keeps. A run's micro-batch must not depend on the
    runs before it, since a killed study resumes in the middle.
    """
    return available_memory()


def choose_micro_batch(
    requested: int | Literal["auto"],
    slices: Sequence[Sequence[BatchSlice]],
    *,
    device: torch.device,
    bytes_per_image: Callable[[], float],
    try_pass: Callable[[int], None],
    local_world_size: int,
) -> int:
    """Choose the most samples of a forward pass, the same on all ranks.

    On a GPU `auto` tries all of a rank's samples and halves them on out-of-memory. On a CPU, where running out kills
    the process, it divides the available memory of the machine, container or batch job by the memory that activations
    take.

    Args:
        requested: samples at most.
        slices: this rank's slices of a batch, for each batch size of the run.
        bytes_per_image: bytes per sample that a forward pass keeps for its backward pass.
        try_pass: runs a forward and a backward pass of at most so many samples; raises an error that
            `is_out_of_memory` recognizes.
        local_world_size: processes that share this node's memory.

    Raises:
        InputError: a single BatchNorm group is more than was requested, or than fits.
    """
    # Shares of a batch may differ by a sample; the choice must hold for every rank.
    by_rank = distributed.all_gather([[size for part in batch for size in part.group_sizes] for batch in slices])
    group_sizes = [sizes for batches in by_rank for sizes in batches]
    group, largest = max(map(max, group_sizes)), max(map(sum, group_sizes))
    if requested != "auto":
        if requested < group:
            raise InputError(
                f"micro_batch: {requested} cannot hold a BatchNorm group of {group} images; give at least {group}, "
                "more simulated_workers, or a smaller bn_group"
            )
        return requested
    if device.type != "cuda":
        n_fit = images_that_fit(_free_at_start(), bytes_per_image(), local_world_size)
        if distributed.any_rank(n_fit < group):
            raise _does_not_fit(group)
        return min(*distributed.all_gather(n_fit), max(group, CPU_MICRO_BATCH), largest)
    return halve_until_fits(largest, group, try_pass)


def images_that_fit(free: int, bytes_per_image: float, local_world_size: int) -> int:
    """Return the most images of a pass on a CPU, for each of the processes that share `free` bytes."""
    return int(_CPU_SHARE * free / local_world_size / bytes_per_image)


def pass_fits(try_pass: Callable[[], None]) -> bool:
    """Return whether `try_pass` runs on every rank without running out of memory; all ranks call it."""
    failed = False
    try:
        try_pass()
    except Exception as error:
        # Libraries report a full memory by errors of many classes; all others are raised again.
        if not is_out_of_memory(error):
            raise
        failed = True
    # Outside the handler, whose exception keeps the tensors of the pass alive.
    fits = not distributed.any_rank(failed)
    if not fits:
        torch.cuda.empty_cache()
    return fits


def halve_until_fits(largest: int, group: int, try_pass: Callable[[int], None]) -> int:
    """Return the most samples, of largest, largest / 2, ..., group, for which `try_pass` runs on every rank."""
    max_size = largest
    while not pass_fits(partial(try_pass, max_size)):
        if max_size == group:
            raise _does_not_fit(group)
        max_size = max(group, max_size // 2)
    return max_size


def activation_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Return the bytes that a forward pass in training mode keeps for its backward pass, without the weights."""
    kept: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = forward()
    for tensor in (*model.parameters(), *model.buffers()):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    del output  # keeps the recorded storages alive until here
    return sum(kept.values())


def _does_not_fit(group: int) -> OutOfMemory:
    return OutOfMemory(
        f"micro_batch: auto, but one BatchNorm group of {group} images does not fit the memory; "
        "give more simulated_workers or a smaller bn_group, which change the result, or more memory"
    )
