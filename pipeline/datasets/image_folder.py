"""Image folders and archives of them: recognize the layout, and list the images by split and class."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from pipeline.datasets.archives import open_source
from pipeline.datasets.decode import IMAGE_SUFFIXES, UnreadableError, decode_files
from pipeline.datasets.file_tree import FileSource, FileTree, FolderSource
from pipeline.datasets.image_set import SPLITS, DatasetOptions, DecodedImage, ImageSet, Sample, UnreadableImage
from pipeline.datasets.labels import class_name
from pipeline.datasets.metadata_tables import find_tables, has_labels, list_tables, missing_column
from pipeline.datasets.parquet_images import ParquetImages, has_image_column, shard_names
from pipeline.datasets.splits import choose_test_rows
from pipeline.errors import InputError
from pipeline.paths import expand_home

_EXPECTED = "expected <class>/<image>, or train/<class>/<image> and test/<class>/<image> (or val/)"

_ARROW = ".arrow"

# Limits the size of files: 16-bit RGBA pixels, uncompressed, and 4 MiB of metadata.
_BYTES_PER_PIXEL = 8
_METADATA_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a folder of images.

    Attributes:
        root: folder that all names start with, or empty; packers often add one.
        class_names: sorted; the label of a class is its index.
        splits: by split, or by the empty name if the data set has no splits: (name below `root`, label), sorted by
            name.
    """

    root: str
    class_names: tuple[str, ...]
    splits: dict[str, tuple[tuple[str, int], ...]]


def find_layout(tree: FileTree, label: str) -> Layout:
    """Recognize the layout `<class>/<image>`, or that with train/ and test/ (or val/) around it.

    Args:
        label: name of the folder or archive in messages.

    Raises:
        InputError: the tree has neither layout, an empty class, images outside the classes, or a class that only the
            test split has.
    """
    root = _lone_root(tree)
    tree = tree.below(root)
    tops = _folders(tree)
    folders = {"train": "train", "test": _test_folder(tree)}
    if not any(_folders(tree.below(folder)) for folder in folders.values()):
        classes = {"": _classes(tree, label)}
    else:
        _check_splits(tree, tops, folders, label)
        classes = {split: _classes(tree.below(folder), f"{label}: {folder}") for split, folder in folders.items()}
        for name in classes["test"]:
            if name not in classes["train"]:
                raise InputError(
                    f"prepare.path: {label}: class {name} is in {folders['test']}/ but not in train/; add or remove it"
                )
    class_names = tuple(sorted({name for of_split in classes.values() for name in of_split}))
    number = {name: i for i, name in enumerate(class_names)}
    return Layout(
        root=root,
        class_names=class_names,
        splits={
            split: tuple(
                sorted(
                    (f"{folders[split]}/{file}" if split else file, number[name])
                    for name, files in of_split.items()
                    for file in files
                )
            )
            for split, of_split in classes.items()
        },
    )


def _lone_root(tree: FileTree) -> str:
    """Return the single folder that contains everything, or an empty name."""
    tops = _folders(tree)
    if len(tops) == 1 and tops[0] not in SPLITS and _folders(tree.below(tops[0])) and not _loose_images(tree):
        return tops[0]
    return ""


def _test_folder(tree: FileTree) -> str:
    """Return `test`, or `val` if there is no labeled test/, as in ImageNet, whose test images have no labels."""
    has = {folder: bool(_folders(tree.below(folder))) for folder in ("train", "test", "val")}
    return "val" if has["train"] and has["val"] and not has["test"] else "test"


def _check_splits(tree: FileTree, tops: Sequence[str], folders: Mapping[str, str], label: str) -> None:
    for folder in folders.values():
        if not _folders(tree.below(folder)):
            raise InputError(f"prepare.path: {label}: there are no class folders in {folder}/; {_EXPECTED}")
    # An empty test/, or one of loose files without labels, may be next to train/ and val/.
    others = [name for name in tops if name not in (*folders.values(), *SPLITS)]
    if others:
        raise InputError(
            f"prepare.path: {label}: folder {others[0]} next to train/ and {folders['test']}/ belongs to neither; "
            "move or remove it"
        )
    _refuse_loose_images(tree, label)


def _classes(tree: FileTree, label: str) -> dict[str, list[str]]:
    """Return the names of the files by class; folders whose names `class_name` maps to one name are one class."""
    nested = [folder for folder in tree.folders if "/" in folder]
    if nested:
        raise InputError(f"prepare.path: {label}: {nested[0]} is a folder within a class; {_EXPECTED}")
    _refuse_loose_images(tree, label)
    classes: dict[str, list[str]] = {class_name(folder): [] for folder in tree.folders}
    if "" in classes:
        raise InputError(f"prepare.path: {label}: the name of a class folder is blank; rename it")
    if not classes:
        raise InputError(f"prepare.path: {label}: no class folders; {_EXPECTED}")
    for name in tree.files:
        folder, slash, _ = name.partition("/")
        if slash:
            classes[class_name(folder)].append(name)
    empty = [name for name, files in classes.items() if not files]
    if empty:
        raise InputError(f"prepare.path: {label}: class folder {empty[0]} is empty; add images or remove it")
    return classes


def _refuse_loose_images(tree: FileTree, label: str) -> None:
    """Check that no image is next to the class folders, where it would have no class; notes and licenses may be."""
    loose = _loose_images(tree)
    if loose:
        more = f" (and {len(loose) - 1} more images)" if len(loose) > 1 else ""
        raise InputError(f"prepare.path: {label}: {loose[0]} is in no class folder{more}; {_EXPECTED}")


def _loose_images(tree: FileTree) -> list[str]:
    return [name for name in tree.files if "/" not in name and PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES]


def _folders(tree: FileTree) -> list[str]:
    return [name for name in tree.folders if "/" not in name]


_Files = Iterator[tuple[str, bytes | UnreadableError]]


@dataclass(frozen=True, kw_only=True)
class FolderImages(ImageSet):
    """The images of a folder or archive.

    Attributes:
        read: yields path and content of each image file once, in the order that reads fastest; of a file that cannot be
            read, the reason.
    """

    read: Callable[[], _Files]


_Divide = Callable[[dict[str, list[Sample]], DatasetOptions, str], tuple[Sequence[Sample], Sequence[Sample]]]


def open_image_folder(options: DatasetOptions, source: FileSource | None = None) -> FolderImages:
    """Open a folder or archive of images, whose layout is recognized by its content.

    Layouts: train/<class>/* and test/<class>/*; or <class>/* with the fraction `test_size` as the test split; images
    with metadata.csv or metadata.jsonl; or a folder of Parquet shards. The latter two are of the Hugging Face hub.

    Images are in the order of their sorted paths, independent of the file system or archive. Those of shards keep the
    order of the rows.

    Args:
        source: in place of the folder or archive at `options.path`.

    Raises:
        InputError: the folder or archive is missing, damaged or unsafe, or has another layout; `test_size` is missing,
            or set although there is a test split; or the label column is missing, or set without a table.
    """
    return _open(options, _split, source)


def open_unsplit(options: DatasetOptions) -> FolderImages:
    """Open a folder or archive as `open_image_folder` does, with the images of all splits as training images.

    Raises:
        InputError: the folder or archive is missing, damaged or unsafe, or has another layout; or the label column is
            missing, or set without a table.
    """
    return _open(options, _all_in_one)


def _open(options: DatasetOptions, divide: _Divide, source: FileSource | None = None) -> FolderImages:
    assert options.path is not None
    source = open_source(expand_home(options.path)) if source is None else source
    tree = source.tree()
    _refuse_arrow_files(source, tree)
    if _has_shards(source, tree):
        return _open_shards(options, source, tree, divide)
    layout, description = _find_any_layout(source, tree, options.label_column)
    splits = {
        split: [Sample(path=path, label=label) for path, label in files if path not in options.exclude]
        for split, files in layout.splits.items()
    }
    divided = divide(splits, options, source.label)
    files_in = layout.root if isinstance(source, FolderSource) else None
    read = partial(_read, source, layout)
    return _images(read, options, layout.class_names, divided, files_in=files_in, description=description)


def _open_shards(options: DatasetOptions, source: FileSource, tree: FileTree, divide: _Divide) -> FolderImages:
    assert options.path is not None
    if not isinstance(source, FolderSource):
        raise InputError(
            f"prepare.path: {source.label}: has Parquet shards, which are not read from an archive; unpack it"
        )
    shards = ParquetImages(expand_home(options.path), tree, options.label_column)
    splits = {
        split: [sample for sample in samples if sample.path not in options.exclude]
        for split, samples in shards.listing.splits.items()
    }
    divided = divide(splits, options, source.label)
    return _images(shards.read, options, shards.listing.class_names, divided, description=shards.description)


def _images(
    read: Callable[[Set[str], int], _Files],
    options: DatasetOptions,
    class_names: tuple[str, ...],
    divided: tuple[Sequence[Sample], Sequence[Sample]],
    *,
    files_in: str | None = None,
    description: str,
) -> FolderImages:
    train, test = (tuple(samples) for samples in divided)

    def files() -> _Files:
        max_bytes = int(options.max_megapixels * 1e6 * _BYTES_PER_PIXEL) + _METADATA_BYTES
        return read({sample.path for sample in (*train, *test)}, max_bytes)

    def decode() -> Iterator[DecodedImage | UnreadableImage]:
        return decode_files(files(), options.image_size, max_megapixels=options.max_megapixels, draft=options.draft)

    return FolderImages(
        class_names=class_names, train=train, test=test, read=files, decode=decode, files_in=files_in,
        description=description,
    )  # fmt: skip


def _refuse_arrow_files(source: FileSource, tree: FileTree) -> None:
    """Check that the images are not in Arrow files, which `save_to_disk` of the library `datasets` writes.

    Raises:
        InputError: naming one of them.
    """
    arrow = [name for name in tree.files if name.endswith(_ARROW)]
    if arrow and not any(PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES for name in tree.files):
        raise InputError(
            f"prepare.path: {source.label}: {arrow[0]} is of `save_to_disk`, which is not read; open the folder by "
            "`datasets.load_from_disk`, and write each split by `to_parquet`, e.g. as train.parquet"
        )


def _has_shards(source: FileSource, tree: FileTree) -> bool:
    """Return whether the images are in Parquet files. Image folders may have tables next to them."""
    names = shard_names(tree)
    if not names or not any(PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES for name in tree.files):
        return bool(names)
    return isinstance(source, FolderSource) and any(has_image_column(Path(source.label) / name) for name in names)


def _find_any_layout(source: FileSource, tree: FileTree, label_column: str | None) -> tuple[Layout, str]:
    """Return the layout by metadata.csv or metadata.jsonl, or by class folders, and a description of it for the log.

    Raises:
        InputError: as `open_image_folder`.
    """
    tables = find_tables(source, tree)
    if tables is not None and has_labels(tables, label_column):
        listing = list_tables(tables, source, tree, label_column)
        layout = Layout(
            root=tables.root,
            class_names=listing.class_names,
            splits={
                split: tuple((sample.path, sample.label) for sample in samples)
                for split, samples in listing.splits.items()
            },
        )
        return layout, ", ".join([f"labels of {', '.join(tables.contents)}", *listing.notes])
    if label_column is not None:
        if tables is not None:
            raise missing_column(tables, label_column, source)
        raise InputError(
            f"prepare.label_column: {label_column} is given, but {source.label} has neither Parquet shards nor a "
            "metadata.csv or metadata.jsonl with the column file_name; remove the key"
        )
    try:
        return find_layout(tree, source.label), ""
    except InputError:
        if tables is None:
            raise
        # Its images have no class folders: the table was meant to have the labels.
        raise missing_column(tables, label_column, source) from None


def _split(
    splits: dict[str, list[Sample]], options: DatasetOptions, label: str
) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Return the training and the test samples."""
    if "train" in splits:
        if options.test_size is not None:
            raise InputError(
                f"prepare.test_size: {options.test_size:g} is given, but {label} has train/ and test/; remove the key"
            )
        return splits["train"], splits["test"]
    if options.test_size is None:
        raise InputError(
            f"prepare.test_size: missing, and {label} has no train/ and test/; "
            "give the share of each class to hold out, e.g. 0.2"
        )
    samples = splits[""]
    held_out = choose_test_rows(
        [sample.path for sample in samples], [sample.label for sample in samples], options.test_size, seed=options.seed
    )
    return (
        [sample for sample, out in zip(samples, held_out, strict=True) if not out],
        [sample for sample, out in zip(samples, held_out, strict=True) if out],
    )


def _all_in_one(splits: dict[str, list[Sample]], *_: object) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Return all samples, and no test sample."""
    return [sample for samples in splits.values() for sample in samples], []


def _read(source: FileSource, layout: Layout, paths: Set[str], max_bytes: int) -> _Files:
    """Yield the files' content by their path in the data set, which is relative to the layout's root."""
    prefix = f"{layout.root}/" if layout.root else ""
    for name, content in source.read({prefix + path for path in paths}, max_bytes):
        yield name.removeprefix(prefix), content
