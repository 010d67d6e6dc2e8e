"""The one exception that means "the user can mend this": a single line and exit code 2."""

from __future__ import annotations

import errno

_MENDS = {
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


class InputError(ValueError):
    """Bad input from outside: a parameter, a file, a data set, an installation.

    The message is one line that names the key or file, the value found and the mend. Stages and
    commands print it without a traceback and exit with code 2; anything else is a bug and keeps
    its traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class DataError(InputError):
    """Of a file of the data, and of no setting: it is missing or damaged, or not the one that it was."""


class MachineError(InputError):
    """Of this machine and what is installed or runs on it, and of no setting: another machine does the same well."""


class Terminated(BaseException):
    """The process was asked to end, and its work is saved: the same command goes on."""


def mend_of(error: OSError) -> str | None:
    """One line for what the file system refused, or None if the error is not the user's to mend."""
    mend = _MENDS.get(error.errno or 0)
    return f"{error.filename or 'writing'}: {error.strerror}; {mend}" if mend else None
