"""What the operating system does for a process when another one ends."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def signal_on_parents_death(sent: signal.Signals) -> None:
    """Have Linux send `sent` to this process when its parent dies, however that happens.

    A parent that died before this call goes unnoticed; callers compare `os.getppid()` afterwards.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sent)
