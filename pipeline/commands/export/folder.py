"""The folder of the images, into which the tables of `export` can be copied, unless `prepare` would refuse it then."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.commands.export.decisions import DecidedImages
from pipeline.datasets.file_tree import FolderSource
from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import DatasetOptions, ImageSet
from pipeline.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SourceFolder:
    """Attributes: the options by which `prepare` opens the folder, and its images, all of which are files of it."""

    options: DatasetOptions
    images: ImageSet

    @property
    def path(self) -> Path:
        """The folder of `prepare`."""
        assert self.options.path is not None
        return self.options.path

    @property
    def folder(self) -> Path:
        """The folder that the paths of the manifests are relative to."""
        return self.path / (self.images.files_in or "")


def copy_lines(metadata: Path, source: SourceFolder, decisions: DecidedImages) -> Iterator[str]:
    """Yield the command that copies the tables in `metadata` into the folder, with cautions; or why not to do it."""
    if decisions.n_planted is not None:
        yield f"do not copy {metadata} into {source.folder}: its labels were changed on purpose"
        return
    tables = sorted(path.relative_to(metadata) for path in metadata.rglob("metadata.csv"))
    try:
        _check_copied(metadata, tables, source)
    except InputError as error:
        yield f"do not copy {metadata} into {source.folder}, which would be refused with these tables: {error}"
        return
    copy = shlex.join(["cp", "-r", f"{metadata}/.", f"{source.folder}/"])
    yield f"to replace the labels of the folder: {copy}"
    for table in (source.folder / name for name in tables):
        if table.exists():
            yield f"it overwrites {table}, of which other columns are lost: keep a copy"
    if source.options.label_column is not None:
        yield f"then remove prepare.label_column: {source.options.label_column}, since the column is called label there"


def _check_copied(metadata: Path, tables: list[Path], source: SourceFolder) -> None:
    """Check that the folder is a data set with these tables.

    Raises:
        InputError: as `open_image_folder`.
    """
    inside = source.folder.relative_to(source.path)
    added = {(inside / name).as_posix(): (metadata / name).read_bytes() for name in tables}
    open_image_folder(replace(source.options, label_column=None), FolderSource(source.path, added))
