"""The images, labels and true classes of a case; for outliers the images are written to a folder in --work."""

import argparse
import shutil
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.label_noise.cases import Case, Images, make_labels
from benchmarks.label_noise.folders import relabeled, write_subset
from benchmarks.label_noise.outliers import NO_CLASS, OUTLIER_KINDS, OpenSet, corrupt, open_set
from pipeline.artifacts.files import open_array, read_json, write_array, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.datasets.store import channel_statistics
from pipeline.errors import InputError
from pipeline.paths import DataPaths

# After those of the kinds of wrong labels.
_FIRST_STREAM = 100


@dataclass(frozen=True, kw_only=True, eq=False)
class CaseImages:
    """What a case audits.

    Attributes:
        base: prepared images (N) and test images.
        labels: (N,) to train on.
        truth: (N,) true classes; `NO_CLASS` where none is right.
        class_names: by class.
    """

    base: DataPaths
    labels: NDArray[np.int64]
    truth: NDArray[np.int64]
    class_names: tuple[str, ...]


def make_case_images(arguments: argparse.Namespace, case: Case, images: Images, base: DataPaths) -> CaseImages:
    """Return the images and labels of a case, the same for all of one kind, rate and seed.

    Args:
        arguments: with `work`, the folder of the cases, and `seed`, of the noise.
        base: prepared images (N).

    Raises:
        InputError: the rate cannot be reached, or the data lack a class.
    """
    if case.kind not in OUTLIER_KINDS:
        labels = make_labels(case, images, seed=arguments.seed)
        return CaseImages(base=base, labels=labels, truth=images.truth, class_names=images.class_names)
    folder = arguments.work / f"{case.kind}-{case.rate:g}-images"
    target, temporary = DataPaths(root=folder), DataPaths(root=folder.with_name(f"{folder.name}.tmp"))
    rng = np.random.default_rng([arguments.seed, _FIRST_STREAM + OUTLIER_KINDS.index(case.kind)])
    shutil.rmtree(temporary.root, ignore_errors=True)
    if case.kind == "corrupt":
        rows, damaged = corrupt(images.pixels, case.rate, rng)
        truth, labels, names = images.truth.copy(), images.truth, images.class_names
        truth[rows] = NO_CLASS
        if not folder.exists():
            _write_damaged(base, temporary, rows, damaged)
    else:
        found = open_set(images.truth, len(images.class_names), case.rate, rng)
        truth, labels = found.truth, found.labels
        names = tuple(name for label, name in enumerate(images.class_names) if label != found.left_out)
        if not folder.exists():
            _write_open_set(base, temporary, found, names)
    if not (truth == NO_CLASS).any():
        raise InputError(f"--rates: {case.rate:g} of {len(truth)} images gives no {case.kind} image; increase it")
    if not folder.exists():
        # The folder appears whole: a killed process leaves a temporary one.
        temporary.root.rename(folder)
    return CaseImages(base=target, labels=labels, truth=truth, class_names=names)


def _write_damaged(base: DataPaths, target: DataPaths, rows: NDArray[np.int64], damaged: NDArray[np.uint8]) -> None:
    n = read_parquet(base.manifest("train"), ["label"]).num_rows
    write_subset(base, target, np.ones(n, dtype=np.bool_))
    images = np.array(open_array(base.images("train"), dtype=np.uint8, ndim=4, rows=n))
    images[rows] = damaged
    write_array(target.images("train"), images)
    mean, std = channel_statistics(images)
    write_json(target.prepare_metrics, {**read_json(target.prepare_metrics), "mean": mean, "std": std})


def _write_open_set(base: DataPaths, target: DataPaths, found: OpenSet, names: tuple[str, ...]) -> None:
    """Write the images, and the test images without those of the class that is left out."""
    mask = np.zeros(read_parquet(base.manifest("train"), ["label"]).num_rows, dtype=np.bool_)
    mask[found.rows] = True
    write_subset(base, target, mask)
    write_parquet(target.manifest("train"), relabeled(read_parquet(target.manifest("train")), found.labels, names))
    manifest = read_parquet(base.manifest("test"))
    own = manifest["label"].to_numpy()
    kept = own != found.left_out
    pixels = open_array(base.images("test"), dtype=np.uint8, ndim=4, rows=len(own))
    write_array(target.images("test"), pixels[kept])
    manifest = manifest.filter(pa.array(kept))
    ids = pa.array(np.arange(len(manifest)))
    manifest = manifest.set_column(manifest.column_names.index("sample_id"), "sample_id", ids)
    write_parquet(target.manifest("test"), relabeled(manifest, (own - (own > found.left_out))[kept], names))
    counts = np.bincount(found.labels, minlength=len(names)).tolist()
    changed = {
        "class_names": list(names),
        "n_test": int(kept.sum()),
        "class_counts": {"train": dict(zip(names, counts, strict=True))},
    }
    write_json(target.prepare_metrics, {**read_json(target.prepare_metrics), **changed})
