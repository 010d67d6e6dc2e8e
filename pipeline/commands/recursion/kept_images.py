"""A part of data/prepare, as if the other training images had never been there."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.arrays import create_array, open_array
from pipeline.artifacts.atomic import remove_leftovers
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.artifacts.planted import count_planted
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.datasets.summary import channel_statistics
from pipeline.errors import InputError
from pipeline.paths import DataPaths

_BLOCK_BYTES = 1 << 26
# What the whole set and a part of it have in common.
_COMMON = ("class_names", "image_size", "n_test")
# Without the true labels, where some were changed on purpose: no network may learn from them.
_COLUMNS = ("sample_id", "path", "label", "label_name", "sha256", "val")


def write_kept_images(whole: DataPaths, part: DataPaths, keep: NDArray[np.bool_]) -> None:
    """Write the training split and the metrics of `part`'s prepare/ from those of `whole`; metrics.json comes last.

    Sample ids are counted anew, and mean and std are those of the images kept. With `prepare.storage: files`
    the files stay where they are, since the manifest names them.

    Args:
        keep: (N,) of the training images of `whole`.

    Raises:
        InputError: a file of `whole` is missing or damaged, or the disk is full.
    """
    remove_leftovers(part.prepare_metrics.parent)
    rows = np.flatnonzero(keep)
    _copy_rows(open_array(whole.images("train"), dtype=np.uint8, ndim=4, rows=len(keep)), rows, part.images("train"))
    manifest = read_parquet(whole.manifest("train"), _COLUMNS).filter(pa.array(keep))
    column = manifest.column_names.index("sample_id")
    manifest = manifest.set_column(column, "sample_id", pa.array(np.arange(len(rows))))
    write_parquet(part.manifest("train"), manifest)
    metrics = read_json(whole.prepare_metrics)
    if missing := [key for key in _COMMON if key not in metrics]:
        raise InputError(f"{whole.prepare_metrics}: has no key {missing[0]}; run `dvc repro --force`")
    labels = np.bincount(manifest["label"].to_numpy(), minlength=len(metrics["class_names"]))
    mean, std = channel_statistics(open_array(part.images("train"), dtype=np.uint8, ndim=4))
    write_json(
        part.prepare_metrics,
        {
            **{key: metrics[key] for key in _COMMON},
            "files_in": metrics.get("files_in"),
            "n_planted": count_planted(whole, among=keep),
            "n_train": len(rows),
            "n_val": int(np.count_nonzero(manifest["val"])),
            "class_counts": {"train": dict(zip(metrics["class_names"], labels.tolist(), strict=True))},
            "mean": mean,
            "std": std,
        },
    )


def link(place: Path, target: Path) -> None:
    """A symbolic link at `place` to `target`, instead of one that is there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.absolute())
    temporary.replace(place)


def _copy_rows(pixels: NDArray[np.uint8], rows: NDArray[np.int64], path: Path) -> None:
    """In blocks, so that data sets larger than memory pass."""
    step = max(1, _BLOCK_BYTES // pixels[:1].nbytes)
    with create_array(path, (len(rows), *pixels.shape[1:]), np.uint8) as out:
        for start in range(0, len(rows), step):
            out[start : start + step] = pixels[rows[start : start + step]]
