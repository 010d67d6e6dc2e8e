"""Data that the processes of a search share: a mark in its folder, and the images."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from pipeline.artifacts.files import read_json, write_bytes
from pipeline.artifacts.prepared import ImageFiles, ImageSource, load_prepared, prepared_digest
from pipeline.artifacts.provenance import code_digest
from pipeline.artifacts.tables import read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.runs.execution import LoadedSplits
from pipeline.training.run_key import machine_info


def write_mark(folder: Path) -> str:
    """Write a unique mark to `folder` and return it. A process that shares the folder can read it."""
    mark = uuid.uuid4().hex
    write_bytes(_mark_file(folder), mark.encode())
    return mark


def check_mark(folder: Path, mark: str) -> None:
    """Raise InputError if `folder` is not the one to which `write_mark` wrote `mark`."""
    file = _mark_file(folder)
    if not file.exists() or file.read_text(encoding="ascii") != mark:
        raise InputError(
            f"{folder}: a worker does not see the files of the search in this folder, so it would repeat finished "
            "training; give workers the folder of --work under the same path, and run the same command again"
        )


def _mark_file(folder: Path) -> Path:
    return folder / "mark"


@dataclass(frozen=True, kw_only=True)
class TrialData:
    """Where the images are, and the properties that each process must have.

    Attributes:
        data: absolute, since a worker may run in another folder.
        image_folder: absolute `prepare.path`, for images that stay in their files.
        digest: of the prepared data.
        machine: items of `machine_info` of the process that started the search.
        code: digest of the code that trains an epoch, as that process loaded it.
    """

    data: DataPaths
    image_folder: Path | None
    digest: str
    machine: tuple[tuple[str, str], ...]
    code: str


# Computed at import: a worker keeps running while the files change.
_CODE = code_digest("pipeline.tuning.processes")


def make_trial_data(
    data: DataPaths, *, image_folder: Path | None, digest: str, machine: Mapping[str, Any]
) -> TrialData:
    """Return the data for workers of a search that starts in this process, with its paths."""
    return TrialData(
        data=DataPaths(root=data.root.resolve()),
        image_folder=image_folder.resolve() if image_folder else None,
        digest=digest,
        machine=tuple((name, str(value)) for name, value in machine.items()),
        code=_CODE,
    )


@lru_cache(maxsize=1)
def load_splits(source: TrialData, device: torch.device) -> LoadedSplits:
    """Load the training images, with those flagged `val` as the test split, which no search may use.

    Raises:
        InputError: the data are missing, damaged or not those of the search; this process loaded other code; or it and
            `device` would give other bits than the process that started the search.
    """
    if source.code != _CODE:
        raise InputError(
            "a process that trains runs other code than the search; restart workers of dask.scheduler in the project's "
            "current folder, and run the same command again"
        )
    machine = machine_info(device)
    for name, expected in source.machine:
        if str(machine[name]) != expected:
            raise InputError(
                f"dask.scheduler: a worker has {name} {machine[name]}, but the search started with {expected}, so "
                "results would depend on the worker; use workers of the same environment and kind of device"
            )
    prepared = load_prepared(source.data, folder=source.image_folder)
    if prepared_digest(source.data) != source.digest:
        raise InputError(
            f"{source.data.root}: the prepared data are not those that the search started with; give workers the "
            "project's folder under the same path, or start the search again if the data have changed"
        )
    val = val_rows(source.data)
    return LoadedSplits(
        train_images=prepared.train.source,
        test_images=_select(prepared.train.source, val, source),
        test_labels=prepared.train.labels[val],
        class_names=prepared.class_names,
    )


def val_rows(data: DataPaths) -> NDArray[np.bool_]:
    """Return which training images are flagged `val`, bool (N,)."""
    flags: NDArray[np.bool_] = read_parquet(data.manifest("train"), ["val"])["val"].to_numpy()
    return flags


def _select(images: ImageSource, rows: NDArray[np.bool_], source: TrialData) -> ImageSource:
    if not isinstance(images, ImageFiles):
        return images[rows]
    assert source.image_folder is not None
    manifest = read_parquet(source.data.manifest("train"), ["path", "sha256"]).filter(pa.array(rows))
    files_in = read_json(source.data.prepare_metrics)["files_in"]
    return ImageFiles(source.image_folder / files_in, manifest["path"], manifest["sha256"])
