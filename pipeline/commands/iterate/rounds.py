"""Iterative filtering: round 0, the loop over the rounds, the data of a round, and the comparison of rounds."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import create_array, open_array, remove_leftovers, write_json
from pipeline.artifacts.metrics import AccuracyKeys, ClassKeys, read_metrics
from pipeline.artifacts.overrides import Override, apply_labels, locate_overrides, read_overrides
from pipeline.artifacts.prepared import count_planted, prepared_digest
from pipeline.artifacts.provenance import code_digest, read_provenance, sha256_of_file
from pipeline.artifacts.recorded import check_with_note
from pipeline.artifacts.stage_inputs import iteration_inputs
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.config.extractors import base_architecture
from pipeline.config.params import Params
from pipeline.datasets.store import channel_statistics
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.scoring.thresholds import jaccard

STAGES = ("finetune", "extract", "reduce", "filter")
"""Stages of a round, in order."""


# Modules that cannot change what a stage writes: arguments, messages, names of files.
_PASSIVE_MODULES = frozenset(
    f"pipeline.{name}" for name in ("stages.harness", "run_log", "config.params", "errors", "paths", "processes")
)

_BLOCK_BYTES = 1 << 26
# Metrics that all images and a subset share.
_SHARED_METRICS = ("class_names", "image_size", "n_test")
# Not the true labels of planted label noise: no network may learn from them.
_COLUMNS = ("sample_id", "path", "label", "label_name", "sha256", "val")


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """Result of one round's filter for all N training images, ordered by sample_id.

    Attributes:
        is_noise: (N,) decision of the filter.
        keep: (N,) after manual overrides.
        top1: accuracy of the round's extractor on the test images, 0 to 1.
    """

    is_noise: NDArray[np.bool_]
    keep: NDArray[np.bool_]
    top1: float


def iterate(
    first: RoundResult,
    next_round: Callable[[int, NDArray[np.bool_]], RoundResult],
    *,
    rounds: int,
    min_jaccard: float,
) -> list[RoundResult]:
    """Filter, train the extractor on the kept images, and filter again until two rounds agree.

    This is "using the technique recursively" of Gahlot et al. (2020, future work).

    Args:
        first: round 0.
        next_round: runs a round. Takes its number, 1 or more, and `keep` (N,) of the previous round.
        rounds: maximum number of rounds to run, 1 or more.
        min_jaccard: stop when two successive rounds reach this Jaccard index of `is_noise`.

    Returns:
        Results of rounds 0 to R, 1 <= R <= `rounds`.
    """
    assert rounds >= 1, rounds
    results = [first]
    while len(results) <= rounds and not has_converged(results, min_jaccard):
        results.append(next_round(len(results), results[-1].keep))
    return results


def has_converged(results: Sequence[RoundResult], min_jaccard: float) -> bool:
    """Return whether the last two rounds agree on `is_noise`."""
    return len(results) > 1 and jaccard(results[-2].is_noise, results[-1].is_noise) >= min_jaccard


def compare(results: Sequence[RoundResult]) -> list[dict[str, Any]]:
    """Return one row per round for rounds.json. Round 0 has no previous round, so its changes are None."""
    no_changes = {"jaccard": None, "n_back": None, "n_newly_dropped": None}
    rows = [{"round": 0, **_counts(results[0]), **no_changes}]
    for number, (previous, current) in enumerate(pairwise(results), start=1):
        changes = {
            "jaccard": jaccard(previous.is_noise, current.is_noise),
            "n_back": int((current.keep & ~previous.keep).sum()),
            "n_newly_dropped": int((previous.keep & ~current.keep).sum()),
        }
        rows.append({"round": number, **_counts(current), **changes})
    return rows


def _counts(result: RoundResult) -> dict[str, Any]:
    n_kept = int(result.keep.sum())
    return {
        "n_kept": n_kept,
        "n_noise": int(result.is_noise.sum()),
        "n_dropped": len(result.keep) - n_kept,
        "top1": result.top1,
    }


@dataclass(frozen=True, kw_only=True)
class FirstRound:
    """Round 0, which `dvc repro` wrote.

    Attributes:
        result: of the filter.
        paths, sha256: of the N training images.
        overrides: the user's overrides, in file order.
    """

    result: RoundResult
    paths: Sequence[str]
    sha256: Sequence[str]
    overrides: Sequence[Override]


def read_first_round(params: Params, data: DataPaths, network: str) -> FirstRound:
    """Read data/filter/<network> and its inputs.

    Raises:
        InputError: a file is missing, damaged or not what its stage wrote, or was made with other parameters, images
            or overrides.
    """
    check_with_note(data, iteration_inputs(network, data))
    result = read_round(data, network)
    for stage, parameters in _sections(params).items():
        path = data.provenance(stage, None if stage == "prepare" else network)
        if read_provenance(path)["parameters"] != parameters:
            raise InputError(f"{path}: made with another section `{stage}` than the current one; run `dvc repro`")
    columns = ["path", "sha256"]
    images = read_parquet(data.manifest("train"), columns)
    if not images.equals(read_parquet(data.points(network), columns)):
        raise InputError(f"{data.points(network)}: its images are not those of data/prepare; run `dvc repro`")
    paths, sha256 = (images[column].to_pylist() for column in columns)
    overrides, names = read_overrides(data.overrides), _class_names(data)
    located = locate_overrides(overrides, file=data.overrides, paths=paths, sha256=sha256, class_names=names)
    keep = ~result.is_noise & ~_near_duplicates(data, network)
    for row, override in located.items():
        keep[row] = override.keeps
    labels = apply_labels(read_parquet(data.manifest("train"), ["label"])["label"].to_numpy(), located, names)
    if not np.array_equal(keep, result.keep) or not np.array_equal(labels, read_corrected_labels(data, network)):
        raise InputError(f"{data.points(network)}: made with another {data.overrides}; run `dvc repro`")
    return FirstRound(result=result, paths=paths, sha256=sha256, overrides=overrides)


def read_round(data: DataPaths, network: str) -> RoundResult:
    """Read the decisions of `filter` and the accuracy of the extractor.

    Raises:
        InputError: a file is missing or damaged.
    """
    points = read_parquet(data.points(network), {"is_noise": pa.bool_(), "keep": pa.bool_()})
    return RoundResult(
        is_noise=points["is_noise"].to_numpy(),
        keep=points["keep"].to_numpy(),
        top1=read_metrics(data.finetune_metrics(network), AccuracyKeys)["top1"],
    )


def _near_duplicates(data: DataPaths, network: str) -> NDArray[np.bool_]:
    """Return which training images (N,) the filter dropped as near duplicates; none if it does not drop them."""
    points = read_parquet(data.points(network), ["is_noise"], optional=["near_duplicate"])
    if "near_duplicate" not in points.column_names:
        return np.zeros(len(points), dtype=np.bool_)
    dropped: NDArray[np.bool_] = points["near_duplicate"].to_numpy()
    return dropped


def read_corrected_labels(data: DataPaths, network: str) -> NDArray[np.int64]:
    """Return the labels (N,) of the training images after overrides, as the filter wrote them.

    Raises:
        InputError: the file is missing or damaged.
    """
    labels: NDArray[np.int64] = read_parquet(data.points(network), {"corrected_label": pa.int64()})[0].to_numpy()
    return labels


def _class_names(data: DataPaths) -> list[str]:
    names: list[str] = read_metrics(data.prepare_metrics, ClassKeys)["class_names"]
    return names


def round_inputs(params: Params, data: DataPaths, network: str, first: RoundResult) -> dict[str, Any]:
    """Return all inputs of the later rounds as plain values. The names appear in messages."""
    weights = Path(params.finetune.weights.replace("{network}", base_architecture(network)))
    decisions = np.concatenate([np.packbits(first.is_noise), np.packbits(first.keep)])
    code = [code_digest(f"pipeline.stages.{stage}", exclude=_PASSIVE_MODULES) for stage in STAGES]
    return {
        **_sections(params),
        "data/prepare": f"{prepared_digest(data)} {sha256_of_file(data.prepare_metrics)}",
        "data/filter": hashlib.sha256(decisions.tobytes()).hexdigest(),
        "data/overrides.csv": sha256_of_file(data.overrides),
        "finetune.weights": sha256_of_file(weights) if weights.is_file() else None,
        "the code of the stages": code,
    }


def _sections(params: Params) -> dict[str, Any]:
    """Return stage -> the parameters in its provenance, which has names of files instead of their paths."""
    paths = {"path": params.prepare.path, "label_file": params.prepare.label_file}
    names = {key: Path(path).name if path else None for key, path in paths.items()}
    sections = {stage: getattr(params, stage).model_dump(mode="json") for stage in ("prepare", *STAGES)}
    return {**sections, "prepare": {**sections["prepare"], **names}}


def write_kept_images(source: DataPaths, subset: DataPaths, keep: NDArray[np.bool_], labels: NDArray[np.int64]) -> None:
    """Write prepare/ of `subset` as if the dropped training images had never existed; metrics.json comes last.

    Sample ids are renumbered. Mean and std are those of the kept images. With `prepare.storage: files`
    the files stay in place, since the manifest names them.

    Args:
        source: data folder with all training images.
        subset: data folder to write.
        keep: (N,) of the training images of `source`.
        labels: (N,) of these images after overrides.

    Raises:
        InputError: a file of `source` is missing or damaged, or the disk is full.
    """
    remove_leftovers(subset.prepare_metrics.parent)
    rows = np.flatnonzero(keep)
    _copy_rows(open_array(source.images("train"), dtype=np.uint8, ndim=4, rows=len(keep)), rows, subset.images("train"))
    metrics = read_metrics(source.prepare_metrics, ClassKeys)
    if missing := [key for key in _SHARED_METRICS if key not in metrics]:
        raise InputError(f"{source.prepare_metrics}: has no key {missing[0]}; run `dvc repro --force`")
    manifest = read_parquet(source.manifest("train"), _COLUMNS).filter(pa.array(keep))
    names = pa.array([metrics["class_names"][label] for label in labels[rows].tolist()], pa.string())
    changed = {"sample_id": pa.array(np.arange(len(rows))), "label": pa.array(labels[rows]), "label_name": names}
    for name, values in changed.items():
        manifest = manifest.set_column(manifest.column_names.index(name), name, values)
    write_parquet(subset.manifest("train"), manifest)
    counts = np.bincount(labels[rows], minlength=len(metrics["class_names"]))
    mean, std = channel_statistics(open_array(subset.images("train"), dtype=np.uint8, ndim=4))
    write_json(
        subset.prepare_metrics,
        {
            **{key: metrics[key] for key in _SHARED_METRICS},
            "files_in": metrics.get("files_in"),
            "n_planted": count_planted(source),
            "n_train": len(rows),
            "n_val": int(np.count_nonzero(manifest["val"])),
            "class_counts": {"train": dict(zip(metrics["class_names"], counts.tolist(), strict=True))},
            "mean": mean,
            "std": std,
        },
    )


def link(path: Path, target: Path) -> None:
    """Create or replace the symbolic link `path` to `target`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.absolute())
    temporary.replace(path)


def _copy_rows(pixels: NDArray[np.uint8], rows: NDArray[np.int64], path: Path) -> None:
    """Copy in blocks, since a data set may exceed memory."""
    step = max(1, _BLOCK_BYTES // pixels[:1].nbytes)
    with create_array(path, (len(rows), *pixels.shape[1:]), np.uint8) as out:
        for start in range(0, len(rows), step):
            out[start : start + step] = pixels[rows[start : start + step]]
