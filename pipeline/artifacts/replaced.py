"""Folders that are replaced by two renames: a kill between them loses neither the old one nor the new one."""

import os
from collections.abc import Callable
from pathlib import Path


def restore_replaced(root: Path, is_whole: Callable[[Path], bool]) -> list[Path]:
    """Rename `.KEY.old.PID.tmp` back to KEY where KEY is missing and the process PID is dead.

    A process that replaces the folder KEY renames it to this name, and then the new one to KEY. Call this before
    `remove_leftovers`, which deletes what a killed process has left.

    Args:
        root: of the folders; may be missing.
        is_whole: whether a folder has all its files: a killed process may have begun to delete it.

    Returns:
        The folders that are there again.
    """
    restored = []
    for moved in sorted(root.glob(".*.old.*.tmp")):
        key, _, pid = moved.name[1:].removesuffix(".tmp").rpartition(".old.")
        folder = root / key
        if not pid.isdecimal() or _may_be_replacing(int(pid)) or folder.exists() or not is_whole(moved):
            continue
        try:
            moved.rename(folder)
        except OSError:
            # Another process was faster.
            if not folder.exists():
                raise
        restored.append(folder)
    return restored


def _may_be_replacing(pid: int) -> bool:
    # In a container a killed process had the same id as this one, which replaces nothing now.
    return pid != os.getpid() and Path("/proc", str(pid)).exists()
