"""List the files of a folder or archive, and reject unsafe or ambiguous names."""

import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NoReturn, Protocol

from pipeline.datasets.decode import UnreadableError
from pipeline.errors import InputError

# Files that desktops and archivers add, in lower case: Windows writes Thumbs.db and thumbs.db.
_CLUTTER = frozenset(("__macosx", "thumbs.db", "desktop.ini"))
# Control characters, halves of surrogate pairs (bytes that are not UTF-8), line and paragraph separators.
_FORBIDDEN_CATEGORIES = frozenset(("Cc", "Cs", "Zl", "Zp"))


@dataclass(frozen=True, kw_only=True)
class FileTree:
    """Sorted names of files and folders relative to one root, with forward slashes."""

    files: tuple[str, ...]
    folders: tuple[str, ...]

    @classmethod
    def from_names(cls, files: Iterable[str], folders: Iterable[str]) -> "FileTree":
        """Sort the names, and add the parents of all files and folders to the folders."""
        files, all_folders = sorted(files), set(folders)
        for name in [*files, *all_folders]:
            all_folders.update(str(parent) for parent in PurePosixPath(name).parents)
        return cls(files=tuple(files), folders=tuple(sorted(all_folders - {"."})))

    def below(self, folder: str) -> "FileTree":
        """Return the part inside `folder`; everything for the empty name."""
        prefix = f"{folder}/" if folder else ""
        return FileTree(files=tuple(_strip(self.files, prefix)), folders=tuple(_strip(self.folders, prefix)))


class FileSource(Protocol):
    """A folder or an archive.

    Attributes:
        label: its name in messages.
    """

    label: str

    def tree(self) -> FileTree:
        """Return all files and folders that are not hidden.

        Raises:
            InputError: a name is unsafe or ambiguous, or the archive is damaged.
        """

    def read(self, names: Set[str], max_bytes: int) -> Iterator[tuple[str, bytes | UnreadableError]]:
        """Yield name and content of each of these files once, in the order that reads fastest.

        A file that cannot be read, or has more than `max_bytes`, gives the reason in place of its content.
        """


def is_hidden(name: str) -> bool:
    """Return whether a part of the name starts with a dot, or is a file that desktops add."""
    return any(part.startswith(".") or part.lower() in _CLUTTER for part in name.split("/"))


def is_plain(name: str) -> bool:
    """Return whether a name is text without line breaks, which would break tables and messages."""
    if name.isascii() and name.isprintable():
        return True
    return not any(unicodedata.category(character) in _FORBIDDEN_CATEGORIES for character in name)


def check_name(name: str, source: str) -> None:
    """Check that a name is plain.

    Raises:
        InputError: naming `source` and, quoted, the name.
    """
    if not is_plain(name):
        raise InputError(f"prepare.path: {source}: the name {name!a} holds a line break or is not UTF-8; rename it")


def too_large(size: int, max_bytes: int) -> UnreadableError | None:
    """Return the reason not to read a file of `size` bytes; None if it is small enough."""
    if size <= max_bytes:
        return None
    return UnreadableError(f"{size / 1e6:.0f} MB, more than an image of prepare.max_megapixels can take")


def _strip(names: Iterable[str], prefix: str) -> Iterator[str]:
    return (name.removeprefix(prefix) for name in names if name.startswith(prefix))


class ArchiveMembers:
    """Collects the members of an archive, and rejects unsafe ones."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add(self, raw_name: str, kind: str) -> None:
        """Add a member of `kind` "file" or "folder"; other kinds are rejected.

        Raises:
            InputError: the name is absolute, leads out of the archive, has a backslash or a drive, is not text or
                occurs twice; or the member is a link or a device.
        """
        name = normalize_name(raw_name)
        check_name(name, self._label)
        problem = unsafe_name(raw_name)
        if kind == "file" and name == ".":
            problem = "has no name; pack it again"
        if not problem and is_hidden(name):
            return
        if not problem and kind not in ("file", "folder"):
            problem = f"is a {kind}; pack plain files only (tar: --dereference --hard-dereference)"
        if not problem and name in self._files:
            problem = "occurs twice; pack it once"
        if problem:
            raise InputError(f"prepare.path: {self._label}: member {raw_name!r} {problem}")
        (self._files if kind == "file" else self._folders).add(name)

    def tree(self) -> FileTree:
        return FileTree.from_names(self._files, self._folders - {"."})


def normalize_name(raw_name: str) -> str:
    """Remove a leading `./`, doubled and trailing slashes; `..` stays."""
    return str(PurePosixPath(raw_name))


@contextmanager
def explain_damage(label: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Convert exceptions of these `kinds` to InputError: the archive called `label` is damaged."""
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f"prepare.path: {label}: not a valid .tar, .tar.gz, .tar.bz2, .tar.xz or .zip archive "
            f"({reason[0].rstrip(':')}); copy or pack it again"
        ) from None


def unsafe_name(raw_name: str) -> str:
    """Return what is wrong with a relative name, and the fix; empty for a safe name."""
    if raw_name.startswith("/") or raw_name[1:2] == ":":
        return "has an absolute path; pack relative ones"
    if ".." in PurePosixPath(raw_name).parts:
        return "leads out of the archive; pack paths without `..`"
    if "\\" in raw_name:
        return "has a backslash; pack paths with forward slashes"
    return ""


class FolderSource:
    """`FileSource` of a folder. Links may only lead to files inside it.

    Args:
        root: the folder.
        added: content by name of files that are to come into it, and may replace others.
    """

    def __init__(self, root: Path, added: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self.label = str(root)
        self._root = root
        self._added = added

    def tree(self) -> FileTree:
        files: list[str] = []
        folders: list[str] = []
        for parent, folder_names, file_names in os.walk(self._root, onerror=self._refuse):
            base = Path(parent).relative_to(self._root)
            folder_names[:] = [name for name in folder_names if not is_hidden(name)]
            folders.extend(self._checked(base / name, is_folder=True) for name in folder_names)
            files.extend(self._checked(base / name, is_folder=False) for name in file_names if not is_hidden(name))
        return FileTree.from_names({*files, *self._added}, folders)

    def read(self, names: Set[str], max_bytes: int) -> Iterator[tuple[str, bytes | UnreadableError]]:
        for name in sorted(names):
            if name in self._added:
                yield name, self._added[name]
                continue
            try:
                path = self._root / name
                yield name, too_large(path.stat().st_size, max_bytes) or path.read_bytes()
            except OSError as error:
                yield name, UnreadableError(error.strerror or type(error).__name__)

    def _checked(self, relative: Path, *, is_folder: bool) -> str:
        """Return the name with forward slashes, if the file is safe to open.

        Raises:
            InputError: naming the link, pipe, socket or device.
        """
        name = relative.as_posix()
        check_name(name, self.label)
        path = self._root / relative
        if path.is_symlink():
            if is_folder:
                raise InputError(f"prepare.path: {self.label}: {name} is a link to a folder; put the folder there")
            # Unlike Path.resolve, it takes a link to itself. Reading reports that.
            if not Path(os.path.realpath(path)).is_relative_to(self._root.resolve()):
                raise InputError(f"prepare.path: {self.label}: {name} is a link out of the folder; put the file there")
        # Opening a pipe would wait forever. Reading reports a broken link.
        if not is_folder and path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"prepare.path: {self.label}: {name} is a pipe, socket or device; remove it")
        return name

    def _refuse(self, error: OSError) -> NoReturn:
        raise InputError(f"prepare.path: {error.filename} cannot be listed ({error.strerror}); fix its permissions")
