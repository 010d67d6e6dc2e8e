"""Which members of an archive are safe: plain files and folders with plain relative names, each once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from pipeline.datasets.tree import FileTree, check_name, is_hidden
from pipeline.errors import InputError


class Members:
    """Collects an archive's members and refuses, by name, what must not be there."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add(self, raw_name: str, kind: str) -> None:
        """Take a member of `kind` "file", "folder", or anything else, which is refused.

        Raises:
            InputError: absolute, leading upwards, with a backslash or a drive, not text, a link, a
                device, or there twice.
        """
        name = normal(raw_name)
        check_name(name, self._label)
        problem = _unsafe(raw_name)
        if kind == "file" and name == ".":
            problem = "has no name; pack it again"
        if not problem and is_hidden(name):
            return
        if not problem and kind not in ("file", "folder"):
            problem = f"is a {kind}; pack plain files only (tar: --dereference --hard-dereference)"
        if not problem and name in self._files:
            problem = "is there twice; pack it once"
        if problem:
            raise InputError(f"prepare.path: {self._label}: member {raw_name!r} {problem}")
        (self._files if kind == "file" else self._folders).add(name)

    def tree(self) -> FileTree:
        return FileTree.of(self._files, self._folders - {"."})


def normal(raw_name: str) -> str:
    """Without leading `./`, doubled and trailing slashes; `..` stays."""
    return str(PurePosixPath(raw_name))


@contextmanager
def named_damage(label: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn exceptions of these `kinds` into InputError: the archive called `label` is damaged."""
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        said = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f"prepare.path: {label}: not a sound .tar, .tar.gz, .tar.bz2, .tar.xz or .zip archive "
            f"({said[0].rstrip(':')}); copy or pack it again"
        ) from None


def _unsafe(raw_name: str) -> str:
    if raw_name.startswith("/") or raw_name[1:2] == ":":
        return "has an absolute path; pack relative ones"
    if ".." in PurePosixPath(raw_name).parts:
        return "leads out of the archive; pack paths without `..`"
    if "\\" in raw_name:
        return "has a backslash; pack paths with forward slashes"
    return ""
