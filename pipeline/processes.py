"""What the operating system does for a process: relatives, the end of its parent, freed and peak memory."""

import ctypes
import resource
import signal
from pathlib import Path

_STATUS = Path("/proc/self/status")
_PR_SET_PDEATHSIG = 1
# From glibc's malloc.h; each with the value that keeps memory.
_KEEP = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}


def set_parent_death_signal(sent: signal.Signals) -> None:
    """Have Linux send `sent` to this process when its parent dies, however that happens.

    A parent that died before this call goes unnoticed; callers compare `os.getppid()` afterwards.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sent)


def disable_malloc_trim() -> None:
    """Have freed memory used again rather than given back to Linux, which would fault each page in again.

    Training on a CPU frees and allocates the same large tensors at every step: it is a tenth faster
    so. What was free once stays with this process until it ends. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in _KEEP.values():
            mallopt(option, value)


def child_pids(pid: int) -> list[int]:
    """Processes that the main thread of `pid` started and that have not been waited for; none if it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def processes_in_folder(folder: Path) -> dict[int, list[str]]:
    """pid -> program and arguments of every process whose working folder is `folder` or below it.

    Those of other users may not be looked at and are left out.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder.resolve()):
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                found[int(process.name)] = command.rstrip("\0").split("\0")
        except OSError:
            continue  # it has ended, or is another user's
    return found


def hides_working_folder(pid: int) -> bool:
    """Whether a living process does not show its working folder, as Linux hides that of another user's."""
    try:
        Path(f"/proc/{pid}/cwd").readlink()
    except PermissionError:
        return True
    except OSError:
        return False  # it has ended
    return False


def peak_memory_kib() -> int:
    """The most resident memory that this program has had, in KiB.

    What getrusage tells begins with the memory of the process that started this one, since Linux keeps
    the number over `exec`; it serves where /proc has none.
    """
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines() if _STATUS.exists() else []
    found = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return found[0] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
