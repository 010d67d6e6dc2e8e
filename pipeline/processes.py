"""Functions of the operating system: processes, working folders, git, memory, and room for files."""

import atexit
import ctypes
import errno
import gc
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

from pipeline.errors import InputError, MachineError

_STATUS = Path("/proc/self/status")
_PR_SET_PDEATHSIG = 1
# Numbers of options in glibc's malloc.h, each with the value that keeps freed memory.
_MALLOC_OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}

MIN_BYTES = 1 << 20
"""Room that every stage needs for tables, logs and records."""

MIN_MEMORY = 512 << 20
"""Address space that every stage needs above that of its libraries."""


def set_parent_death_signal(sent: signal.Signals) -> None:
    """Have Linux send `sent` to this process when its parent dies from any cause.

    No signal arrives for a parent that died before this call: callers compare `os.getppid()` afterwards.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sent)


@contextmanager
def signal_handler(
    handler: Callable[[int, FrameType | None], None],
    numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
) -> Iterator[None]:
    """Handle signals by `handler` in the block, and by the earlier handlers after it.

    A SIGINT that the process ignores, as background jobs of a shell do, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, earlier in before.items():
            if number != signal.SIGINT or earlier is not signal.SIG_IGN:
                signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def is_orphaned(launcher: str) -> bool:
    """Return whether process 1 has adopted this process, because the one that started it has ended.

    In a container process 1 may itself be the one that started it.

    Args:
        launcher: file name or module of the program that starts processes such as this one.
    """
    if os.getppid() != 1:
        return False
    try:
        words = Path("/proc/1/cmdline").read_bytes().split(b"\0")
    except OSError:  # hidden from this user, who then did not start it
        return True
    return launcher not in {Path(os.fsdecode(word)).name for word in words}


def describe_signal(number: int) -> str:
    """Return the end of a line about a process that a signal ended, such as `was ended by SIGSEGV`."""
    name = signal.Signals(number).name
    why = "; Linux does that when the memory is full (see `dmesg`)" if name == "SIGKILL" else ""
    return f"was ended by {name}{why}"


def disable_malloc_trim() -> None:
    """Keep freed memory in this process instead of returning it to Linux, which would fault each page in again.

    Training on a CPU frees and allocates the same large tensors at every step, and becomes a tenth faster. The process
    keeps freed memory until it ends. Does nothing if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in _MALLOC_OPTIONS.values():
            mallopt(option, value)


@cache
def freeze_imported_objects() -> None:
    """Exempt all objects that exist from garbage collection: those of imported modules live until the process ends.

    torch alone has half a million, and a collection visits them all, the last one when Python ends. Only the first
    call in a process has an effect: later there may be garbage among the objects. Turns the collector on, which
    `python -m pipeline...` has off while it imports.
    """
    gc.freeze()
    gc.enable()
    atexit.register(_unfreeze_nanobind)


def _unfreeze_nanobind() -> None:
    """Let nanobind, by which triton is built, free its objects: it prints each one that outlives Python."""
    if "triton" in sys.modules:
        gc.unfreeze()


def child_pids(pid: int) -> list[int]:
    """Return the children that the main thread of `pid` started and has not waited for; empty if `pid` has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def processes_in_folder(folder: Path) -> dict[int, list[str]]:
    """Return pid -> program and arguments of every process whose working folder is `folder` or below it.

    Processes of other users hide their working folders and are left out.
    """
    commands = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder.resolve()):
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                commands[int(process.name)] = command.rstrip("\0").split("\0")
        except OSError:
            continue  # the process has ended, or belongs to another user
    return commands


def process_started_at(pid: int) -> float | None:
    """Return when a living process started, in seconds since 1970, to about a second; None without such a process.

    A zombie, which has ended and whose parent has not asked for its result, is no living process.

    Raises:
        PermissionError: it belongs to another user, and /proc hides it.
    """
    try:
        # The name of the program, in brackets, may contain spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, ticks = fields[0], int(fields[19])
    if state in "ZX":
        return None
    booted = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    assert booted is not None
    return int(booted[1]) + ticks / os.sysconf("SC_CLK_TCK")


def git_output(folder: Path, *arguments: str) -> bytes | None:
    """Return the standard output of git in `folder`; None if it fails or is not installed."""
    try:
        process = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return process.stdout if process.returncode == 0 else None


def peak_memory_kib() -> int:
    """Return the peak resident memory of this program, in KiB.

    Reads VmHWM of /proc. Without it getrusage serves, which also counts the parent's memory: Linux keeps that number
    over `exec`.
    """
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines() if _STATUS.exists() else []
    peaks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def check_memory_limit() -> None:
    """Check that a limit on the address space (`ulimit -v`, RLIMIT_AS) leaves `MIN_MEMORY` to this process.

    With less, libraries do not fail: OpenBLAS asks for its 32 MB again for ever, and OpenMP ends the process.

    Raises:
        MachineError: with the bytes and the fix.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if limit - used < MIN_MEMORY:
        raise MachineError(
            f"ulimit -v: {limit >> 20:,} MiB of memory, of which the libraries take {used >> 20:,}; leave a stage "
            f"{MIN_MEMORY >> 20} MiB or more"
        )


def check_space(folder: Path, n_bytes: int = 0) -> None:
    """Check that a file of `n_bytes`, or of `MIN_BYTES` if that is more, can be made in `folder`, and remove it.

    A number of free bytes would say nothing of quotas, limits on file sizes, and rights.

    Raises:
        InputError: with the bytes and the fix; nothing is left behind.
    """
    probe, n_bytes = folder / f".space.{os.getpid()}.tmp", max(n_bytes, MIN_BYTES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with probe.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, n_bytes)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            # `fix_hint` has the words for rights and for files in place of folders.
            error.filename = str(folder)
            raise
        raise InputError(
            f"{folder}: {error.strerror}: the stage will write {n_bytes / 1e6:,.1f} MB here; free some space or raise "
            "the limit, and run the same command again"
        ) from None
