"""Round 0: what `dvc repro` has written, if it is of today's parameters, images and overrides."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.artifacts.code import code_digest
from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.overrides import Override, locate_overrides, read_overrides
from pipeline.artifacts.prepared import digest_of
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_parquet
from pipeline.commands.recursion.rounds import Verdict
from pipeline.config.networks import architecture_of
from pipeline.config.params import Params
from pipeline.errors import InputError
from pipeline.paths import DataPaths

STAGES = ("finetune", "extract", "reduce", "filter")
"""What a round runs, in this order."""

# Their code cannot change what a stage writes: arguments, words for people, names of files.
_PASSIVE = frozenset(
    f"pipeline.{name}" for name in ("stages.harness", "run_log", "config.params", "errors", "paths", "processes")
)


@dataclass(frozen=True, kw_only=True)
class FirstRound:
    """Round 0.

    Attributes:
        paths, sha256: of the N training images.
        overrides: people's own, in the order of their file.
    """

    verdict: Verdict
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


def read_verdict(data: DataPaths, network: str) -> Verdict:
    """What `filter` decided, and how good the extractor is.

    Raises:
        InputError: a file is missing or damaged.
    """
    points = read_parquet(data.points(network), {"is_noise": pa.bool_(), "keep": pa.bool_()})
    return Verdict(
        is_noise=points["is_noise"].to_numpy(),
        keep=points["keep"].to_numpy(),
        top1=read_json(data.finetune_metrics(network))["top1"],
    )


def inputs_of(params: Params, data: DataPaths, network: str, first: Verdict) -> dict[str, Any]:
    """All that decides the rounds after the first, by what a person would call it; plain values."""
    weights = Path(params.finetune.weights.replace("{network}", architecture_of(network)))
    decided = np.concatenate([np.packbits(first.is_noise), np.packbits(first.keep)])
    return {
        **_sections(params),
        "data/prepare": f"{digest_of(data)} {sha256_of_file(data.prepare_metrics)}",
        "data/filter": hashlib.sha256(decided.tobytes()).hexdigest(),
        "data/overrides.csv": sha256_of_file(data.overrides),
        "finetune.weights": sha256_of_file(weights) if weights.is_file() else None,
        "the code of the stages": [code_digest(f"pipeline.stages.{stage}", passive=_PASSIVE) for stage in STAGES],
    }


def _sections(params: Params) -> dict[str, Any]:
    """What each stage writes as `parameters` to its provenance; where images and labels lie is not in it."""
    places = {"path": params.prepare.path, "labels": params.prepare.labels}
    names = {key: Path(place).name if place else None for key, place in places.items()}
    sections = {stage: getattr(params, stage).model_dump(mode="json") for stage in ("prepare", *STAGES)}
    return {**sections, "prepare": {**sections["prepare"], **names}}
