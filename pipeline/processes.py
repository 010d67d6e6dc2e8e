"""What the operating system knows of a process's relatives, and does for it when its parent ends."""

import ctypes
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def signal_on_parents_death(sent: signal.Signals) -> None:
    """Have Linux send `sent` to this process when its parent dies, however that happens.

    A parent that died before this call goes unnoticed; callers compare `os.getppid()` afterwards.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sent)


def children_of(pid: int) -> list[int]:
    """Processes that the main thread of `pid` started and that have not been waited for; none if it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []
