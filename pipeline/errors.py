"""Errors that the user can fix: one line with the fix, and exit code 2."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FIX_HINTS = {
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space or ask for a larger quota, and run the same command again",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "correct its permissions, or those of its folder",
    errno.EPERM: "correct its permissions, or those of its folder",
    errno.EROFS: "mount it writable, or choose another folder",
    errno.EIO: "its disk or the connection to it fails: see dmesg, and run the same command again",
    errno.EEXIST: "a folder is needed here; move the file away",
    errno.ENOTDIR: "a folder is needed here; move the file away",
    errno.EISDIR: "a file is needed here; move the folder away",
    errno.ELOOP: "a link leads to itself; remove it",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ESTALE: "its server has replaced it: run the same command again",
}

# Temporary files, which are gone when the error is printed, and lock files: what they are for.
_TEMPORARY_NAME = re.compile(r"\.(.+)\.(?:[0-9]+\.tmp|lock)")

# Out-of-memory messages of CUDA and cuBLAS, of cuDNN before and since version 9, of torch's allocator on CPUs, of the
# system, of C++, and of libraries that are loaded. torch has an error class only for its allocator on GPUs. Where no
# algorithm of a convolution gets its workspace, torch catches the errors and finds no engine.
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "was unable to find an engine to execute this computation",
    "failed to map segment",
)

# Of Python and of Arrow. The cause is a limit on processes, or on memory: threads have stacks.
_NO_THREAD_TEXTS = ("can't start new thread", "Failed to launch worker thread")

# oneDNN's whole message: a longer one is about a kind of layer that it lacks.
_OUT_OF_MEMORY_MESSAGES = ("could not create a primitive",)

_SYMLINK_LOOP = "Symlink loop from "

_MAX_LENGTH = 1500
# The fix is at the end of a message.
_END = 300


class InputError(ValueError):
    """Bad input: a parameter, a file, a data set or an installation.

    The message is one line that names the key or file, the value and the fix. Stages and commands print it without a
    traceback and exit with code 2. Any other error is a bug and keeps its traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))

    @property
    def key(self) -> str:
        """The key, file or option before the first ": " of the message; without ": " the message."""
        return str(self).partition(": ")[0]


class DataError(InputError):
    """A data file is missing, damaged or changed. No setting is wrong."""


class MachineError(InputError):
    """This machine, its installation or its processes are the cause. No setting is wrong."""


class OutOfMemory(InputError):  # noqa: N818 - as torch's own
    """The device or the machine has too little free memory."""


class Terminated(BaseException):
    """The process received a request to stop and has saved its state: the same command resumes it."""


def printable(text: str) -> str:
    """Return `text` without what a terminal would obey: line ends, escape sequences, marks of direction.

    Lines quote names and values of files that anybody may have written.
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _one_line(message: str) -> str:
    """Return `message` as one printable line, without the middle of a text that fills a screen."""
    line = printable(" ".join(message.split()))
    return line if len(line) <= _MAX_LENGTH else f"{line[: _MAX_LENGTH - _END]} ... {line[-_END:]}"


def short_reason(error: BaseException) -> str:
    """Return the first line of an error of a library, or the name of its class, in 200 characters at most."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def long_reason(error: Exception) -> str:
    """Return the class and all lines of an error of a library as one line, in 200 characters at most."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def fix_hint(error: BaseException) -> str | None:
    """Return one line with the fix for an error of memory, of threads or of the file system; None for other errors."""
    if _lacks_thread(error):
        return (
            f"no thread could be started ({short_reason(error)}); raise the limits on processes (ulimit -u, or the "
            "container's) and on memory (ulimit -v)"
        )
    if is_out_of_memory(error):
        detail = (str(error).splitlines() or [""])[0][:200]
        return f"out of memory ({type(error).__name__}: {detail}); end other programs, or use a machine with more"
    if isinstance(error, RuntimeError) and str(error).startswith(_SYMLINK_LOOP):
        # Path.resolve before Python 3.13; the path follows in quotes.
        path = str(error).removeprefix(_SYMLINK_LOOP).strip("'")
        return f"{path}: {_FIX_HINTS[errno.ELOOP]}"
    if not isinstance(error, OSError):
        return None
    code = error.errno or 0
    # Other libraries put more than the reason into `strerror`.
    return f"{_target_file(error)}: {os.strerror(code)}; {_FIX_HINTS[code]}" if code in _FIX_HINTS else None


def _target_file(error: OSError) -> str:
    """Return the file that was to be written or read. Of a copy or a renaming it is the second file."""
    name = error.filename2 or error.filename
    if not isinstance(name, str | bytes | os.PathLike):
        return "writing"
    path = Path(os.fsdecode(name))
    for parent in path.parents:
        # A folder that is renamed when it is complete.
        if parent.suffix == ".tmp" and (match := _TEMPORARY_NAME.fullmatch(parent.name)):
            return str(parent.with_name(match[1]) / path.relative_to(parent))
    if not (match := _TEMPORARY_NAME.fullmatch(path.name)):
        return str(path)
    meant = path.with_name(match[1])
    # A lock file may protect the folder that it is in.
    return str(meant if path.suffix == ".tmp" or meant.exists() else path.parent)


@contextmanager
def explain_file_errors() -> Iterator[None]:
    """Replace errors of the file system, for callers that print InputErrors alone.

    Raises:
        InputError: one line with the file and the fix; errors without a known fix pass unchanged.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not (line := fix_hint(error)):
            raise
        raise InputError(line) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that a GPU or the machine has no memory left, in any library."""
    # torch's class, by name: this module does not import torch.
    if isinstance(error, (OutOfMemory, MemoryError)) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # Arrow's class for errors of the system, by name as well.
    if not isinstance(error, RuntimeError | ImportError) and type(error).__name__ != "ArrowException":
        return False
    text = str(error)
    return text in _OUT_OF_MEMORY_MESSAGES or any(words in text for words in _OUT_OF_MEMORY_TEXTS)


def lacks_resources(error: BaseException) -> bool:
    """Return whether the machine lacks memory or threads, so that an error is no sign of a damaged file."""
    return is_out_of_memory(error) or _lacks_thread(error)


def _lacks_thread(error: BaseException) -> bool:
    return not isinstance(error, InputError) and any(words in str(error) for words in _NO_THREAD_TEXTS)


@contextmanager
def explain_out_of_memory(message: str) -> Iterator[None]:
    """Replace out-of-memory errors of the block by one with `message`.

    Raises:
        OutOfMemory: with `message`; an InputError from inside the block passes unchanged, and so does a failure to
            start a thread, which a smaller batch does not cure.
    """
    try:
        yield
    except Exception as error:
        # Libraries report a full memory by errors of many classes; all others are raised again.
        if isinstance(error, InputError) or not is_out_of_memory(error):
            raise
        # Without its cause: that traceback would keep the tensors of the block alive.
        raise OutOfMemory(message) from None
