"""The one exception that means "the user can mend this": a single line and exit code 2."""

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

# "Out of memory" in the words of CUDA and cuBLAS, of cuDNN before and since version 9, of torch's
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

    The message is one line that names the key or file, the value found and the mend. Stages and
    commands print it without a traceback and exit with code 2; anything else is a bug and keeps
    its traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    @property
    def key(self) -> str:
        """What the message names before its first ": ": a key, a file or an option; all of it where it has no ": "."""
        return str(self).partition(": ")[0]


class DataError(InputError):
    """Of a file of the data, and of no setting: it is missing or damaged, or not the one that it was."""


class MachineError(InputError):
    """Of this machine and what is installed or runs on it, and of no setting: another machine does the same well."""


class OutOfMemory(InputError):  # noqa: N818 - as torch's own
    """Memory, of the device or the machine, is too small for the work, or others hold it."""


class Terminated(BaseException):
    """The process was asked to end, and its work is saved: the same command goes on."""


def fix_hint(error: BaseException) -> str | None:
    """One line for what the file system or the memory refused, or None if the error is not the user's to mend."""
    if is_out_of_memory(error):
        said = (str(error).splitlines() or [""])[0][:200]
        return f"out of memory ({type(error).__name__}: {said}); end other programs, or use a machine with more"
    if not isinstance(error, OSError):
        return None
    mend = _FIX_HINTS.get(error.errno or 0)
    return f"{error.filename or 'writing'}: {error.strerror}; {mend}" if mend else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory could not be had, of a GPU or of the machine, by whatever library."""
    # torch's own, by its name: this module comes without torch.
    if isinstance(error, (OutOfMemory, MemoryError)) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


@contextmanager
def explain_out_of_memory(message: str) -> Iterator[None]:
    """Say `message` where memory runs out in the block.

    Raises:
        OutOfMemory: in place of any other error that `is_out_of_memory`; one from further inside stays as it is.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) or not is_out_of_memory(error):
            raise
        # Without its cause, whose traceback holds on to the tensors of the block.
        raise OutOfMemory(message) from None
