"""Compare files with the digests that their stage recorded next to them, before another stage reads them."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.artifacts.provenance import file_digest, read_provenance
from pipeline.artifacts.untrusted import read_untrusted_json
from pipeline.errors import DataError, InputError
from pipeline.paths import DataPaths

# Folder of artifacts and stage: the notes that this process has printed.
_noted: set[tuple[Path, str]] = set()


@dataclass(frozen=True, kw_only=True)
class StageFiles:
    """Files that one stage wrote and another reads.

    Attributes:
        item: the writer's network or study, if it has one.
        optional: files that earlier versions did not write.
    """

    stage: str
    item: str | None = None
    files: tuple[Path, ...]
    optional: tuple[Path, ...] = ()

    @property
    def writer(self) -> str:
        """The name that the stage records: `extract@resnet18`."""
        return f"{self.stage}@{self.item}" if self.item else self.stage

    @property
    def command(self) -> str:
        """The command that writes the files again; DVC finds them as it recorded them."""
        if self.stage == "landscape":
            return f"python -m pipeline landscape --study {self.item}"
        item = "" if self.item is None else f" --{'study' if self.stage == 'train' else 'network'} {self.item}"
        return f"python -m pipeline.stages.{self.stage}{item}"


def check_recorded(data: DataPaths, inputs: Sequence[StageFiles]) -> list[str]:
    """Check that every file is the one that its stage wrote, by the SHA-256 in the stage's provenance file.

    An archive of results may hold other files, such as rounded coordinates, whose digests are in its `archive_record`.

    Returns:
        The names of stages without a provenance file, whose files are not checked.

    Raises:
        DataError: a file or a record is missing, damaged, or of another stage.
    """
    archived = _archived_digests(data)
    return [group.writer for group in inputs if not _is_recorded(data, group, archived)]


def unrecorded_note(writers: Sequence[str]) -> str:
    """Return the note on stages without a provenance file, as `check_recorded` returns them."""
    return f"no provenance.json of {', '.join(writers)}: their files were not checked"


def check_with_note(data: DataPaths, inputs: Sequence[StageFiles], log: Callable[[str], object] | None = None) -> None:
    """Check as `check_recorded`, and say which stages have no provenance file: each once in a process.

    Args:
        log: takes the note, such as `RunLog.info`; None: it is printed to standard error.

    Raises:
        DataError: as `check_recorded`.
    """
    root = data.root.resolve()
    new = [writer for writer in dict.fromkeys(check_recorded(data, inputs)) if (root, writer) not in _noted]
    _noted.update((root, writer) for writer in new)
    if new:
        (log or _print)(f"{data.root}: {unrecorded_note(new)}")


def _print(note: str) -> None:
    print(note, file=sys.stderr)


def check_present(inputs: Sequence[StageFiles]) -> None:
    """Check that no file is missing; the optional ones may.

    Raises:
        DataError: naming the first missing file and the command that writes it.
    """
    for group in inputs:
        if missing := next((path for path in group.files if not path.exists()), None):
            raise _missing(missing, group)


def _archived_digests(data: DataPaths) -> dict[Path, str]:
    path = data.archive_record
    if not path.exists():
        return {}
    try:
        digests = read_untrusted_json(path, may_be_link=True)
    except InputError as error:
        raise DataError(str(error)) from None
    if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
        raise DataError(f"{path}: holds no digests of files; unpack the archive again")
    return {data.root / name: digest for name, digest in digests.items()}


def _is_recorded(data: DataPaths, group: StageFiles, archived: Mapping[Path, str]) -> bool:
    """Check the files of one stage; returns False if there is nothing to compare them with."""
    record = data.provenance(group.stage, group.item)
    recorded = _recorded_digests(record, group) if record.exists() else None
    if recorded is None and archived.keys().isdisjoint(group.files):
        return False
    optional = [path for path in group.optional if path.exists() or os.path.normpath(path) in (recorded or ())]
    others = [path for path in (*group.files, *optional) if _digest(path, group) != archived.get(path)]
    if not others:
        return True
    if recorded is None:
        if changed := next((path for path in others if path in archived), None):
            raise DataError(f"{changed}: is not the file that {data.archive_record} names; unpack the archive again")
        return False
    for path in others:
        name = os.path.normpath(path)
        if name not in recorded:
            raise DataError(
                f"{path}: not among the files that {group.writer} recorded in {record.name}; run `{group.command}`"
            )
        if _digest(path, group) != recorded[name]:
            raise DataError(f"{path}: is not what {group.writer} wrote; run `{group.command}`")
    return True


def _recorded_digests(path: Path, group: StageFiles) -> dict[str, str]:
    try:
        record = read_provenance(path)
    except DataError as error:
        raise DataError(f"{str(error).partition(';')[0]}; run `{group.command}`") from None
    if record["stage"] != group.writer:
        raise DataError(
            f"{path}: is the record of {str(record['stage'])[:80]}, not of {group.writer}; run `{group.command}`"
        )
    return {os.path.normpath(path.parent / name): digest for name, digest in record["outputs"].items()}


def _digest(path: Path, group: StageFiles) -> str:
    try:
        return file_digest(path)
    except FileNotFoundError:
        raise _missing(path, group) from None


def _missing(path: Path, group: StageFiles) -> DataError:
    return DataError(f"{path}: missing; run `{group.command}`")
