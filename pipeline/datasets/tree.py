"""The names in a folder or an archive, and which of them count."""

import unicodedata
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from pipeline.datasets.images import UnreadableError
from pipeline.errors import InputError

# Written by desktops and packers beside the files that a person put there.
_CLUTTER = frozenset(("__MACOSX", "Thumbs.db", "desktop.ini"))
# Control characters, halves of surrogate pairs (bytes that are no UTF-8), line and paragraph separators.
_FORBIDDEN_CATEGORIES = frozenset(("Cc", "Cs", "Zl", "Zp"))


@dataclass(frozen=True, kw_only=True)
class FileTree:
    """Sorted names of files and folders relative to one root, with forward slashes."""

    files: tuple[str, ...]
    folders: tuple[str, ...]

    @classmethod
    def of(cls, files: Iterable[str], folders: Iterable[str]) -> "FileTree":
        """Complete and sort the names: each file's and folder's parents are folders too."""
        files, every = sorted(files), set(folders)
        for name in [*files, *every]:
            every.update(str(parent) for parent in PurePosixPath(name).parents)
        return cls(files=tuple(files), folders=tuple(sorted(every - {"."})))

    def below(self, folder: str) -> "FileTree":
        """The part inside `folder`; all of it for the empty name."""
        prefix = f"{folder}/" if folder else ""
        return FileTree(files=tuple(_strip(self.files, prefix)), folders=tuple(_strip(self.folders, prefix)))


class FileSource(Protocol):
    """A folder or an archive.

    Attributes:
        label: what a person calls it, for messages.
    """

    label: str

    def tree(self) -> FileTree:
        """All that is not hidden. Raises InputError for what is unsafe, ambiguous or damaged."""

    def read(self, names: Set[str], max_bytes: int) -> Iterator[tuple[str, bytes | UnreadableError]]:
        """The content of these files, each once, in the order that reads fastest.

        Instead of a file's content: why it cannot be had, e.g. more than `max_bytes`.
        """


def is_hidden(name: str) -> bool:
    """Whether a part of the name starts with a dot or is a desktop's clutter."""
    return any(part.startswith(".") or part in _CLUTTER for part in name.split("/"))


def check_name(name: str, source: str) -> None:
    """Refuse names that are no text or would break lines in tables and messages.

    Raises:
        InputError: naming `source` and, quoted, the name.
    """
    if name.isascii() and name.isprintable():
        return
    if any(unicodedata.category(character) in _FORBIDDEN_CATEGORIES for character in name):
        raise InputError(f"prepare.path: {source}: the name {name!a} holds a line break or is not UTF-8; rename it")


def too_large(size: int, max_bytes: int) -> UnreadableError | None:
    """Why a file of `size` bytes is not even read, if so."""
    if size <= max_bytes:
        return None
    return UnreadableError(f"{size / 1e6:.0f} MB, more than an image of prepare.max_megapixels can take")


def _strip(names: Iterable[str], prefix: str) -> Iterator[str]:
    return (name.removeprefix(prefix) for name in names if name.startswith(prefix))
