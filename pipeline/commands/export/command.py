"""`batchsieve export FOLDER`: write what the filter kept and dropped in the formats of other tools.

kept/data/train-*.parquet     a data set of the Hugging Face hub: the kept images, and the test images as test-*.parquet
dropped/data/train-*.parquet  the dropped images, with score, reason and suggested label
kept.npy, dropped.npy         sample ids, int64; kept.txt and dropped.txt have them as text
metadata/                     metadata.csv, one for each folder of a split: file_name and label of every image after
                              decisions by hand. Copied into an image folder they replace the labels of class folders.
                              The command is printed, or why the folder would then be refused
label_issues.csv              cleanlab's columns (Datalab): is_label_issue, label_score, given_label, predicted_label.
                              An apostrophe precedes a text that a spreadsheet could run as a formula
networks/<study>/             the best network of each trained study: best.pt, model.safetensors, config.json and
                              README.md, a model card
README.txt                    only if labels were changed on purpose (`prepare.plant_label_noise`): how many. The
                              tables, config.json and the metadata of model.safetensors state it too
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, remove_leftovers, write_array, write_text
from pipeline.artifacts.prepared import ImageFiles, planted_note
from pipeline.artifacts.recorded import check_with_note
from pipeline.artifacts.stage_inputs import export_inputs
from pipeline.artifacts.tables import protect_cells, write_csv
from pipeline.commands import command_parser
from pipeline.commands.export.decisions import (
    DecidedImages,
    ImageReader,
    cleanlab_table,
    metadata_tables,
    png_reader,
    read_decisions,
    shard_columns,
    write_shards,
)
from pipeline.commands.export.folder import SourceFolder, copy_lines
from pipeline.commands.export.networks import write_networks
from pipeline.config.params import Params, load_params
from pipeline.config.prepare import PrepareConfig
from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import DatasetOptions
from pipeline.errors import InputError
from pipeline.locks import file_lock
from pipeline.paths import DataPaths
from pipeline.run_log import Progress, RunLog, stderr_log

_METADATA = "metadata"
_NOTE = "README.txt"
_LOCK = ".export.lock"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("export", __doc__, "params", "data")
    parser.add_argument("folder", type=Path, help="folder to write, new or empty")
    parser.add_argument("--network", help="whose filter (default: the first of the parameters' networks)")
    parser.add_argument("--force", action="store_true", help="overwrite the files of an earlier export")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write all formats and print what is where.

    Returns:
        0.

    Raises:
        InputError: the folder is not empty, another export writes to it, the network is unknown, or files of the
            stages are missing or changed.
    """
    arguments = make_parser().parse_args(argv)
    out: Path = arguments.folder
    params = load_params(arguments.params, accept_old_keys=True)
    network = _network(params, arguments.network)
    _check_target(out, force=arguments.force)
    data = DataPaths(root=arguments.data)
    source = _open_folder(params.prepare)
    folder = None if source is None else source.folder
    inputs = export_inputs(network, list(params.studies), data, reads_images=folder is None)
    check_with_note(data, inputs)
    decisions = read_decisions(data, network)
    readers = {split: _reader(data, decisions, split, folder) for split in ("train", "test")}
    with file_lock(out / _LOCK, f"export {out}", remove=True):
        # Another export may have ended since.
        _check_target(out, force=arguments.force)
        _write_images(out, decisions, readers, source, log=stderr_log(None))
        networks = _write_networks(out, decisions, params, data)
    n_kept = int(decisions.keep.sum())
    print(f"{out}: {n_kept:,} images kept, {len(decisions.keep) - n_kept:,} dropped by the filter of {network}")
    if source is None:
        print(
            f"the images are PNG files of {params.prepare.stored_size} pixels, as prepared, since the originals are no "
            "files of a folder; there is no metadata.csv"
        )
    else:
        print("\n".join(copy_lines(out / _METADATA, source, decisions)))
    for study in networks:
        print(f"{out / 'networks' / study}: best network of study {study}, with a model card")
    for path in sorted((out / "networks").glob("*/")):
        if path.name not in networks:
            print(f"{path}: left by an earlier export, and no study has this name; delete it if you no longer need it")
    if decisions.n_planted is not None:
        print(planted_note(decisions.n_planted))
    return 0


def _check_target(out: Path, *, force: bool) -> None:
    empty = not out.exists() or (out.is_dir() and all(path.name == _LOCK for path in out.iterdir()))
    if not empty and not force:
        raise InputError(f"{out}: exists and is not empty; give a new folder, or add --force to overwrite an export")


def _write_images(
    out: Path, decisions: DecidedImages, readers: dict[str, ImageReader], source: SourceFolder | None, *, log: RunLog
) -> None:
    """Write everything but the networks."""
    _write_note(out / _NOTE, decisions.n_planted)
    n_test = len(decisions.images["test"])
    masks = {"kept": decisions.keep, "dropped": ~decisions.keep}
    rows = {name: np.flatnonzero(mask).astype(np.int64) for name, mask in masks.items()}
    # A killed export left them; they would be uploaded with the others.
    for part in (out, *(path for path in out.rglob("*") if path.is_dir())):
        remove_leftovers(part)
    with log.progress("export", len(decisions.keep) + n_test, "images") as bar:
        for name, of_name in rows.items():
            write_array(out / f"{name}.npy", of_name)
            write_text(out / f"{name}.txt", "".join(f"{row}\n" for row in of_name))
            shards = partial(_write_shards, out / name, decisions, readers, bar)
            shards("train", of_name)
            if name == "kept":
                shards("test", np.arange(n_test, dtype=np.int64))
    # People open it in a spreadsheet. What cleanlab reads of it, `is_label_issue`, is no text.
    write_csv(out / "label_issues.csv", protect_cells(cleanlab_table(decisions)))
    # Unprotected: `datasets`, and the stage `prepare`, take file_name and label as they are written.
    tables = {
        out / _METADATA / name / "metadata.csv": table
        for name, table in (metadata_tables(decisions, source.images) if source else {}).items()
    }
    for path, table in tables.items():
        write_csv(path, table)
    # Those of an earlier export, of other folders, would be copied with these.
    for path in [*(out / _METADATA).rglob("metadata.csv")]:
        if path not in tables and _is_of_export(path):
            path.unlink()


def _write_note(path: Path, n_planted: int | None) -> None:
    """State changed labels for files that cannot: lists of sample ids. A note of an earlier export is removed."""
    if n_planted is not None:
        write_text(path, f"{planted_note(n_planted)}\nThis holds for every file of this folder.\n")
    elif path.exists() and path.read_bytes().startswith(planted_note(0)[:-1].encode()):
        path.unlink()


def _is_of_export(table: Path) -> bool:
    """Return whether a metadata.csv begins with the columns of `metadata_tables`."""
    with table.open("rb") as file:
        return file.readline(99).replace(b'"', b"").startswith(b"file_name,label,keep")


def _write_networks(out: Path, decisions: DecidedImages, params: Params, data: DataPaths) -> list[str]:
    """Write the networks, and return their studies."""
    n_test = len(decisions.images["test"])
    return write_networks(data, list(params.studies), out / "networks", n_test=n_test, n_planted=decisions.n_planted)


def _network(params: Params, given: str | None) -> str:
    if given is not None and given not in params.networks:
        raise InputError(f"--network: {given} is not one of networks {list(params.networks)}; give one of them")
    return given or params.networks[0]


def _open_folder(config: PrepareConfig) -> SourceFolder | None:
    """Return the folder of the images; None if they are no files of a folder.

    Raises:
        InputError: the folder is gone, or is no data set any more.
    """
    if config.dataset != "image_folder" or config.folder is None or config.folder.is_file():
        return None
    options = DatasetOptions(
        path=config.folder, image_size=config.stored_size, test_size=config.test_size,
        max_megapixels=config.max_megapixels, seed=config.seed, downloads=Path(),
        progress=RunLog.silent().progress, label_column=config.label_column,
    )  # fmt: skip
    images = open_image_folder(options)
    return None if images.files_in is None else SourceFolder(options=options, images=images)


def _reader(data: DataPaths, decisions: DecidedImages, split: str, folder: Path | None) -> ImageReader:
    manifest = decisions.images[split]
    if folder is None:
        pixels = open_array(data.images(split), dtype=np.uint8, ndim=4, rows=len(manifest))
        return png_reader(pixels, manifest["path"].to_pylist())
    files = ImageFiles(folder, manifest["path"], manifest["sha256"])
    paths = manifest["path"]

    def read(row: int) -> tuple[bytes, str]:
        return files.read(row), paths[row].as_py()

    return read


def _write_shards(
    folder: Path,
    decisions: DecidedImages,
    readers: dict[str, ImageReader],
    progress: Progress,
    split: str,
    rows: NDArray[np.int64],
) -> None:
    columns = shard_columns(decisions, rows, split)
    write_shards(folder / "data", split, columns, rows, readers[split], decisions.class_names, progress)
