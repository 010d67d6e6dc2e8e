"""Errors that the user can fix: one line with the fix, and exit code 2."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_FIX_HINTS = {
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "correct its permissions",
    errno.EPERM: "correct its permissions",
    errno.EROFS: "mount it writable, or choose another folder",
    errno.EEXIST: "a file stands where a folder is needed; move it away",
    errno.ENOTDIR: "a file stands where a folder is needed; move it away",
    errno.EISDIR: "a folder stands where a file is needed; move it away",
}

# Out-of-memory messages of CUDA and cuBLAS, of cuDNN before and since version 9, of torch's
# allocator on CPUs, of the system and of C++. torch has a type of error for its own allocator on GPUs alone.
_NO_MEMORY = (
    "out of memory",
    "ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
)


class InputError(ValueError):
    """Bad input from outside: a parameter, a file, a data set, an installation.

    The message is one line that names the key or file, the value and the fix. Stages and
    commands print it without a traceback and exit with code 2; anything else is a bug and keeps
    its traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    @property
    def key(self) -> str:
        """The key, file or option before the first ": " of the message; the whole message without ": "."""
        return str(self).partition(": ")[0]


class DataError(InputError):
    """A data file is missing, damaged or changed; no setting is at fault."""


class MachineError(InputError):
    """This machine, its installation or its processes are at fault, and no setting."""


class OutOfMemory(InputError):  # noqa: N818 - as torch's own
    """The memory of the device or the machine is too small, or other programs hold it."""


class Terminated(BaseException):
    """The process was told to end and has saved its state: the same command resumes it."""


def fix_hint(error: BaseException) -> str | None:
    """A one-line message with the fix for an out-of-memory or file system error; None for other errors."""
    if is_out_of_memory(error):
        detail = (str(error).splitlines() or [""])[0][:200]
        return f"out of memory ({type(error).__name__}: {detail}); end other programs, or use a machine with more"
    if not isinstance(error, OSError):
        return None
    fix = _FIX_HINTS.get(error.errno or 0)
    return f"{error.filename or 'writing'}: {error.strerror}; {fix}" if fix else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is an out-of-memory error, of a GPU or of the machine, of any library."""
    # torch's class, by name: this module does not import torch.
    if isinstance(error, (OutOfMemory, MemoryError)) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


@contextmanager
def explain_out_of_memory(message: str) -> Iterator[None]:
    """Replace out-of-memory errors of the block by one with `message`.

    Raises:
        OutOfMemory: with `message`; an InputError from inside the block passes unchanged.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) or not is_out_of_memory(error):
            raise
        # Without its cause, whose traceback keeps the tensors of the block alive.
        raise OutOfMemory(message) from None
