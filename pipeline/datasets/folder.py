"""A folder on disk as a source of files."""

import os
import stat
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NoReturn

from pipeline.datasets.images import UnreadableError
from pipeline.datasets.tree import FileTree, check_name, is_hidden, too_large
from pipeline.errors import InputError


class FolderSource:
    """`FileSource` of a folder. Links may lead to files inside it, nowhere else."""

    def __init__(self, root: Path) -> None:
        self.label = str(root)
        self._root = root

    def tree(self) -> FileTree:
        files: list[str] = []
        folders: list[str] = []
        for parent, folder_names, file_names in os.walk(self._root, onerror=self._refuse):
            base = Path(parent).relative_to(self._root)
            folder_names[:] = [name for name in folder_names if not is_hidden(name)]
            folders.extend(self._checked(base / name, is_folder=True) for name in folder_names)
            files.extend(self._checked(base / name, is_folder=False) for name in file_names if not is_hidden(name))
        return FileTree.of(files, folders)

    def read(self, names: Set[str], max_bytes: int) -> Iterator[tuple[str, bytes | UnreadableError]]:
        for name in sorted(names):
            try:
                path = self._root / name
                yield name, too_large(path.stat().st_size, max_bytes) or path.read_bytes()
            except OSError as error:
                yield name, UnreadableError(error.strerror or type(error).__name__)

    def _checked(self, relative: Path, *, is_folder: bool) -> str:
        """The name as text with forward slashes, of something safe to open."""
        name = relative.as_posix()
        check_name(name, self.label)
        path = self._root / relative
        if path.is_symlink():
            if is_folder:
                raise InputError(f"prepare.path: {self.label}: {name} is a link to a folder; put the folder there")
            if not path.resolve().is_relative_to(self._root.resolve()):
                raise InputError(f"prepare.path: {self.label}: {name} is a link out of the folder; put the file there")
        # Opening a pipe would wait for ever. A broken link is left to fail when it is read.
        if not is_folder and path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"prepare.path: {self.label}: {name} is a pipe, socket or device; remove it")
        return name

    def _refuse(self, error: OSError) -> NoReturn:
        raise InputError(f"prepare.path: {error.filename} cannot be listed ({error.strerror}); mend its permissions")
