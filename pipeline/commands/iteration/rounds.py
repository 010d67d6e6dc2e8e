"""The rounds of iterative filtering."""

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

from pipeline.artifacts.files import create_array, open_array, read_json, remove_leftovers, write_json
from pipeline.artifacts.overrides import Override, locate_overrides, read_overrides
from pipeline.artifacts.prepared import count_planted, prepared_digest
from pipeline.artifacts.provenance import code_digest, sha256_of_file
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.config.extractors import base_architecture
from pipeline.config.params import Params
from pipeline.datasets.store import channel_statistics
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.scoring.thresholds import jaccard

# Filter, train the extractor on what is left, filter again: when it ends, and what came of it.


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """What one round's filter says of all N training images, in the order of their sample_id.

    Attributes:
        is_noise: (N,) the filter's own decision.
        keep: (N,) after people's overrides.
        top1: of the round's extractor on the test images, 0 to 1.
    """

    is_noise: NDArray[np.bool_]
    keep: NDArray[np.bool_]
    top1: float


def iterate(
    first: RoundResult,
    next_round: Callable[[int, NDArray[np.bool_]], RoundResult],
    *,
    rounds: int,
    settle_at: float,
) -> list[RoundResult]:
    """The technique used recursively (Gahlot et al. 2020, future work).

    Args:
        first: round 0.
        next_round: from a round's number, 1 or more, and what the round before it keeps (N,) to its verdict.
        rounds: the most to run, 1 or more.
        settle_at: ends as soon as two rounds in a row reach this Jaccard index of what is noise.

    Returns:
        The verdicts of rounds 0 to R, 1 <= R <= `rounds`.
    """
    assert rounds >= 1, rounds
    verdicts = [first]
    while len(verdicts) <= rounds and not has_converged(verdicts, settle_at):
        verdicts.append(next_round(len(verdicts), verdicts[-1].keep))
    return verdicts


def has_converged(verdicts: Sequence[RoundResult], settle_at: float) -> bool:
    """Whether the last two rounds agree on what is noise."""
    return len(verdicts) > 1 and jaccard(verdicts[-2].is_noise, verdicts[-1].is_noise) >= settle_at


def compare(verdicts: Sequence[RoundResult]) -> list[dict[str, Any]]:
    """One row a round, as rounds.json has it; round 0 has no round before it to be compared with."""
    alone = {"jaccard": None, "n_back": None, "n_newly_dropped": None}
    rows = [{"round": 0, **_counts(verdicts[0]), **alone}]
    for number, (before, now) in enumerate(pairwise(verdicts), start=1):
        against = {
            "jaccard": jaccard(before.is_noise, now.is_noise),
            "n_back": int((now.keep & ~before.keep).sum()),
            "n_newly_dropped": int((before.keep & ~now.keep).sum()),
        }
        rows.append({"round": number, **_counts(now), **against})
    return rows


def _counts(verdict: RoundResult) -> dict[str, Any]:
    n_kept = int(verdict.keep.sum())
    return {
        "n_kept": n_kept,
        "n_noise": int(verdict.is_noise.sum()),
        "n_dropped": len(verdict.keep) - n_kept,
        "top1": verdict.top1,
    }


# Round 0: what `dvc repro` has written, if it is of today's parameters, images and overrides.


STAGES = ("finetune", "extract", "reduce", "filter")
"""What a round runs, in this order."""

# Their code cannot change what a stage writes: arguments, words for people, names of files.
_NOT_DECIDING = frozenset(
    f"pipeline.{name}" for name in ("stages.harness", "run_log", "config.params", "errors", "paths", "processes")
)


@dataclass(frozen=True, kw_only=True)
class FirstRound:
    """Round 0.

    Attributes:
        paths, sha256: of the N training images.
        overrides: people's own, in the order of their file.
    """

    verdict: RoundResult
    paths: Sequence[str]
    sha256: Sequence[str]
    overrides: Sequence[Override]


def read_first_round(params: Params, data: DataPaths, network: str) -> FirstRound:
    """Read data/filter/<network> and what it was made from.

    Raises:
        InputError: a file is missing, damaged or of other parameters, images or overrides than there are now.
    """
    verdict = read_verdict(data, network)
    for stage, parameters in _sections(params).items():
        path = data.provenance(stage, None if stage == "prepare" else network)
        if read_json(path).get("parameters") != parameters:
            raise InputError(f"{path}: made with another section `{stage}` than there is now; run `dvc repro`")
    columns = ["path", "sha256"]
    images = read_parquet(data.manifest("train"), columns)
    if not images.equals(read_parquet(data.points(network), columns)):
        raise InputError(f"{data.points(network)}: its images are not those of data/prepare; run `dvc repro`")
    paths, sha256 = (images[column].to_pylist() for column in columns)
    overrides = read_overrides(data.overrides)
    keep = ~verdict.is_noise
    for row, override in locate_overrides(overrides, file=data.overrides, paths=paths, sha256=sha256).items():
        keep[row] = override.decision == "keep"
    if not np.array_equal(keep, verdict.keep):
        raise InputError(f"{data.points(network)}: made with another {data.overrides}; run `dvc repro`")
    return FirstRound(verdict=verdict, paths=paths, sha256=sha256, overrides=overrides)


def read_verdict(data: DataPaths, network: str) -> RoundResult:
    """What `filter` decided, and how good the extractor is.

    Raises:
        InputError: a file is missing or damaged.
    """
    points = read_parquet(data.points(network), {"is_noise": pa.bool_(), "keep": pa.bool_()})
    return RoundResult(
        is_noise=points["is_noise"].to_numpy(),
        keep=points["keep"].to_numpy(),
        top1=read_json(data.finetune_metrics(network))["top1"],
    )


def round_inputs(params: Params, data: DataPaths, network: str, first: RoundResult) -> dict[str, Any]:
    """All that decides the rounds after the first, by what a person would call it; plain values."""
    weights = Path(params.finetune.weights.replace("{network}", base_architecture(network)))
    decided = np.concatenate([np.packbits(first.is_noise), np.packbits(first.keep)])
    return {
        **_sections(params),
        "data/prepare": f"{prepared_digest(data)} {sha256_of_file(data.prepare_metrics)}",
        "data/filter": hashlib.sha256(decided.tobytes()).hexdigest(),
        "data/overrides.csv": sha256_of_file(data.overrides),
        "finetune.weights": sha256_of_file(weights) if weights.is_file() else None,
        "the code of the stages": [code_digest(f"pipeline.stages.{stage}", exclude=_NOT_DECIDING) for stage in STAGES],
    }


def _sections(params: Params) -> dict[str, Any]:
    """What each stage writes as `parameters` to its provenance; where images and labels lie is not in it."""
    places = {"path": params.prepare.path, "label_file": params.prepare.label_file}
    names = {key: Path(place).name if place else None for key, place in places.items()}
    sections = {stage: getattr(params, stage).model_dump(mode="json") for stage in ("prepare", *STAGES)}
    return {**sections, "prepare": {**sections["prepare"], **names}}


# A part of data/prepare, as if the other training images had never been there.


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
