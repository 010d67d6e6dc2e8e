"""Cache of result files, by a key of everything that determines their bits."""

import errno
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import atomic_path, read_json, remove_leftovers, write_json
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.replaced import restore_replaced
from pipeline.errors import InputError

_RECORD = "entry.json"
# Errors if the file system has no hard links, or the folders are on two file systems.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)


class FileCache:
    """A cache in one folder, with a folder for each entry.

    An entry appears by a single rename, so a killed process leaves a complete entry or none.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, files: Mapping[str, Path], *, seconds: float) -> None:
        """Add or replace an entry: hard links to `files`, or copies.

        Args:
            files: name in the entry -> file.
            seconds: wall time of their computation.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        restore_replaced(self._root, _is_whole)
        remove_leftovers(self._root)
        building, replaced = (self._root / f".{key}.{part}.{os.getpid()}.tmp" for part in ("new", "old"))
        # In a container a killed process had the same id.
        for leftover in (building, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        building.mkdir()
        try:
            for name, path in files.items():
                _link(path, building / name)
            digests = {name: sha256_of_file(building / name) for name in files}
            write_json(building / _RECORD, {"sha256": digests, "seconds": seconds})
            if (self._root / key).exists():
                (self._root / key).rename(replaced)
            building.rename(self._root / key)
        finally:
            # Copies would fill a full disk until the next entry.
            shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)

    def restore(self, key: str, files: Mapping[str, Path]) -> float | None:
        """Write an entry's files to `files`, each atomically.

        Returns:
            Seconds of their computation; None without such an entry, when nothing is written.

        Raises:
            InputError: the entry is damaged.
        """
        restore_replaced(self._root, _is_whole)
        folder = self._root / key
        if not folder.is_dir():
            return None
        record = _read_record(folder)
        if {name: _digest(folder / name) for name in files} != record["sha256"]:
            raise _damaged(folder)
        for name, path in files.items():
            with atomic_path(path) as temporary:
                shutil.copyfile(folder / name, temporary)
        os.utime(folder)
        return float(record["seconds"])

    def clear(self, *, max_age_s: float) -> None:
        """Remove entries that were neither added nor restored in the last `max_age_s` seconds."""
        for folder in self._root.glob("[0-9a-f]*"):
            if folder.stat().st_mtime <= time.time() - max_age_s:
                shutil.rmtree(folder)


def _read_record(folder: Path) -> dict[str, Any]:
    try:
        record = read_json(folder / _RECORD)
    except InputError:
        raise _damaged(folder) from None
    valid = isinstance(record, dict) and isinstance(record.get("sha256"), dict)
    if not valid or not isinstance(record.get("seconds"), int | float):
        raise _damaged(folder)
    return dict(record)


def _is_whole(folder: Path) -> bool:
    try:
        digests: dict[str, str] = _read_record(folder)["sha256"]
    except InputError:
        return False
    return {name: _digest(folder / name) for name in digests} == digests


def _damaged(folder: Path) -> InputError:
    return InputError(f"{folder}: damaged entry; delete this folder and run again")


def _digest(path: Path) -> str | None:
    return sha256_of_file(path) if path.is_file() else None


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copyfile(source, target)
