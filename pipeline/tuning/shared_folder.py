"""Whether the process that trains sees the folder of the process that searches, and not one by the same name."""

import uuid
from pathlib import Path

from pipeline.artifacts.atomic import write_bytes
from pipeline.errors import InputError


def leave_mark(folder: Path) -> str:
    """Write a file that only those find in `folder` who share it; returns what it holds."""
    mark = uuid.uuid4().hex
    write_bytes(_file_in(folder), mark.encode())
    return mark


def check_mark(folder: Path, mark: str) -> None:
    """Raises InputError where `folder` is not the one in which `leave_mark` left `mark`."""
    file = _file_in(folder)
    if not file.exists() or file.read_text(encoding="ascii") != mark:
        raise InputError(
            f"{folder}: a worker does not find there what the search has written, so it would train what is trained "
            "already; give workers the folder of --work under the same path, and run the same command again"
        )


def _file_in(folder: Path) -> Path:
    return folder / "mark"
