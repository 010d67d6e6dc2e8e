"""A folder of images by class, or an archive of one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.datasets.archives import open_archive
from pipeline.datasets.decoding import decode_files
from pipeline.datasets.folder import FolderSource
from pipeline.datasets.image_set import DatasetOptions, DecodedImage, ImageSet, Sample, UnreadableImage
from pipeline.datasets.images import UnreadableError
from pipeline.datasets.layout import Layout, find_layout
from pipeline.datasets.splits import draw_test
from pipeline.datasets.tree import FileSource
from pipeline.errors import InputError

# A file of more bytes than 16-bit RGBA pixels and ample metadata take is no sensible image.
_BYTES_PER_PIXEL = 8
_METADATA_BYTES = 1 << 22


def open_image_folder(options: DatasetOptions) -> ImageSet:
    """train/<class>/* and test/<class>/*, or <class>/* of which `test_share` is held out.

    The order is that of the sorted paths, whatever the file system's or the archive's is.

    Raises:
        InputError: missing, damaged or unsafe; another layout; `test_share` missing or needless.
    """
    assert options.path is not None
    source = _open_source(options.path.expanduser())
    layout = find_layout(source.tree(), source.label)
    splits = {
        split: [Sample(path=path, label=label) for path, label in files if path not in options.leave_out]
        for split, files in layout.splits.items()
    }
    train, test = _split(splits, options, source.label)

    def decode() -> Iterator[DecodedImage | UnreadableImage]:
        paths = [sample.path for sample in (*train, *test)]
        max_bytes = int(options.max_megapixels * 1e6 * _BYTES_PER_PIXEL) + _METADATA_BYTES
        files = _read(source, layout, paths, max_bytes)
        return decode_files(files, options.image_size, max_megapixels=options.max_megapixels)

    return ImageSet(
        class_names=layout.class_names,
        train=tuple(train),
        test=tuple(test),
        decode=decode,
        files_in=layout.root if isinstance(source, FolderSource) else None,
    )


def _open_source(path: Path) -> FileSource:
    if not path.exists():
        raise InputError(f"prepare.path: {path} does not exist; give a folder of images or an archive of one")
    if path.is_dir():
        return FolderSource(path)
    if not path.is_file():
        raise InputError(f"prepare.path: {path} is neither a folder nor a file; give a folder or an archive of one")
    return open_archive(path)


def _split(
    splits: dict[str, list[Sample]], options: DatasetOptions, label: str
) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Training and test samples."""
    if "train" in splits:
        if options.test_share is not None:
            raise InputError(
                f"prepare.test_share: {options.test_share:g} is given, but {label} has train/ and test/; remove the key"
            )
        return splits["train"], splits["test"]
    if options.test_share is None:
        raise InputError(
            f"prepare.test_share: missing, and {label} has no train/ and test/; "
            "give the share of each class to hold out, e.g. 0.2"
        )
    samples = splits[""]
    held_out = draw_test(
        [sample.path for sample in samples], [sample.label for sample in samples], options.test_share, seed=options.seed
    )
    return (
        [sample for sample, out in zip(samples, held_out, strict=True) if not out],
        [sample for sample, out in zip(samples, held_out, strict=True) if out],
    )


def _read(
    source: FileSource, layout: Layout, paths: Sequence[str], max_bytes: int
) -> Iterator[tuple[str, bytes | UnreadableError]]:
    """The files' content by their path in the data set, which leaves out the folder around it."""
    prefix = f"{layout.root}/" if layout.root else ""
    for name, content in source.read({prefix + path for path in paths}, max_bytes):
        yield name.removeprefix(prefix), content
