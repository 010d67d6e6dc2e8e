"""The data that the processes of trials share."""

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
from pipeline.training.cells import LoadedSplits
from pipeline.training.run_key import machine_info

# Whether the process that trains sees the folder of the process that searches, and not one by the same name.


def write_mark(folder: Path) -> str:
    """Write a file that only those find in `folder` who share it; returns what it holds."""
    mark = uuid.uuid4().hex
    write_bytes(_file_in(folder), mark.encode())
    return mark


def check_mark(folder: Path, mark: str) -> None:
    """Raises InputError where `folder` is not the one in which `write_mark` left `mark`."""
    file = _file_in(folder)
    if not file.exists() or file.read_text(encoding="ascii") != mark:
        raise InputError(
            f"{folder}: a worker does not find there what the search has written, so it would train what is trained "
            "already; give workers the folder of --work under the same path, and run the same command again"
        )


def _file_in(folder: Path) -> Path:
    return folder / "mark"


# The images of a search, as any process that trains for it reads them.


@dataclass(frozen=True, kw_only=True)
class TrialData:
    """Where the images are, and what each process is to find there and to be.

    Attributes:
        data: absolute, since a worker may stand in another folder.
        image_folder: `prepare.path`, absolute, for images that stayed in their files.
        digest: of the prepared data.
        machine: the items of `machine_info` where the search began.
        code: digest of the code that trains an epoch, as the process loaded it in which the search began.
    """

    data: DataPaths
    image_folder: Path | None
    digest: str
    machine: tuple[tuple[str, str], ...]
    code: str


# Taken when the code is loaded: a worker lives on while the files change.
_CODE = code_digest("pipeline.tuning.processes")


def make_trial_data(
    data: DataPaths, *, image_folder: Path | None, digest: str, machine: Mapping[str, Any]
) -> TrialData:
    """For the workers of a search that began in this process, with paths as it sees them."""
    return TrialData(
        data=DataPaths(root=data.root.resolve()),
        image_folder=image_folder.resolve() if image_folder else None,
        digest=digest,
        machine=tuple((name, str(value)) for name, value in machine.items()),
        code=_CODE,
    )


@lru_cache(maxsize=1)
def load_splits(source: TrialData, device: torch.device) -> LoadedSplits:
    """The training images, with those flagged `val` in the place of the test split, which no search may see.

    Raises:
        InputError: the data here are missing, damaged or not those of the search, this process loaded other code, or it
            and `device` would give other bits than the one where the search began.
    """
    if source.code != _CODE:
        raise InputError(
            "a process that trains runs other code than the search; where it is a worker of dask.scheduler, start it "
            "again in the project's folder, as that is now, and run the same command again"
        )
    here = machine_info(device)
    for name, there in source.machine:
        if str(here[name]) != there:
            raise InputError(
                f"dask.scheduler: a worker has {name} {here[name]}, and the search began with {there}, so results "
                "would depend on who trains; use workers of the same environment and kind of device"
            )
    prepared = load_prepared(source.data, folder=source.image_folder)
    if prepared_digest(source.data) != source.digest:
        raise InputError(
            f"{source.data.root}: the prepared data are not those that the search began with; give workers the "
            "project's folder under the same path, or start the search again if the data have changed"
        )
    judged = val_rows(source.data)
    return LoadedSplits(
        train_images=prepared.train.source,
        train_labels=prepared.train.labels,
        test_images=_some(prepared.train.source, judged, source),
        test_labels=prepared.train.labels[judged],
        class_names=prepared.class_names,
    )


def val_rows(data: DataPaths) -> NDArray[np.bool_]:
    """(N,) bool: the training images flagged `val`."""
    flags: NDArray[np.bool_] = read_parquet(data.manifest("train"), ["val"])["val"].to_numpy()
    return flags


def _some(images: ImageSource, rows: NDArray[np.bool_], source: TrialData) -> ImageSource:
    if not isinstance(images, ImageFiles):
        return images[rows]
    assert source.image_folder is not None
    manifest = read_parquet(source.data.manifest("train"), ["path", "sha256"]).filter(pa.array(rows))
    files_in = read_json(source.data.prepare_metrics)["files_in"]
    return ImageFiles(source.image_folder / files_in, manifest["path"], manifest["sha256"])
