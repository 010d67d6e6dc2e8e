"""The folder of a case: images, wrong labels and parameters, as the project's own stages read them."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from ruamel.yaml import YAML

from benchmarks.label_noise.cases import Case
from pipeline.artifacts.files import atomic_path, read_json, write_array, write_json
from pipeline.artifacts.overrides import write_overrides
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.commands.iteration.rounds import write_kept_images
from pipeline.config.params import Params, check_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths


def take_images(everything: DataPaths, part: DataPaths, taken: NDArray[np.bool_]) -> None:
    """Write `part`'s prepare/ of the training images taken, (M,) of those of `everything`, and of all test images."""
    write_kept_images(everything, part, taken)
    for file in (everything.images("test"), everything.manifest("test")):
        _hard_link(file, part.prepare_metrics.with_name(file.name))


def make_folder(
    folder: Path,
    case: Case,
    base: DataPaths,
    *,
    labels: NDArray[np.int64],
    truth: NDArray[np.int64],
    class_names: tuple[str, ...],
    params: dict[str, Any],
    weights: Path | None,
) -> None:
    """Write what the stages read of a case, and truth.npy; case.json, which says that it is there, comes last.

    Args:
        base: prepared images (N).
        labels: (N,) to train on.
        truth: (N,).
        params: of `case_params`.
        weights: the file that they name.

    Raises:
        InputError: parameters that do not go together.
    """
    check_params(params, source=f"--params for {case.name}")
    data = DataPaths(root=folder / "data")
    for file in (base.images("train"), base.images("test"), base.manifest("test"), base.prepare_metrics):
        _hard_link(file, data.prepare_metrics.with_name(file.name))
    write_parquet(data.manifest("train"), _relabelled(read_parquet(base.manifest("train")), labels, class_names))
    write_overrides(data.overrides, [])
    write_array(folder / "truth.npy", truth)
    with atomic_path(folder / "params.yaml") as temporary, temporary.open("w", encoding="utf-8") as text:
        YAML(typ="safe", pure=True).dump(params, text)
    write_json(folder / "case.json", _record(case, params, weights))


def is_made(folder: Path, case: Case, params: dict[str, Any], weights: Path | None) -> bool:
    """Whether `make_folder` has finished with the same arguments.

    Raises:
        InputError: it has, with others.
    """
    file = folder / "case.json"
    if not file.exists():
        return False
    known, wanted = read_json(file), _record(case, params, weights)
    different = [key for key in wanted if known.get(key) != wanted[key]]
    if different:
        raise InputError(f"{file}: is of another {different[0]}; choose another --work, or delete that folder")
    return True


def case_params(params: Params, case: Case, *, steps: int | None, weights: Path | None) -> dict[str, Any]:
    """The parameter file of a case, with the first network alone.

    Args:
        steps: of each network, by a cosine after a tenth of warm-up; None: of no network.
        weights: that the networks start from; None: random ones.
    """
    tree = params.model_dump(mode="json", exclude_unset=True)
    network = params.networks[0]
    finetune = {
        **tree["finetune"],
        "folds": case.folds,
        "trainable": "head" if case.variant == "frozen" else "all",
        "weights": str(weights.resolve()) if weights else "none",
        "workers": 1,
    }
    if steps is not None:
        finetune["budget"] = {"steps": steps}
        finetune["schedule"] = {"name": "cosine", "warmup": {"steps": steps // 10}}
    studies = {name: {**study, "filter_network": network, "needs": "filter"} for name, study in tree["studies"].items()}
    return {**tree, "networks": [network], "finetune": finetune, "studies": studies}


def _record(case: Case, params: dict[str, Any], weights: Path | None) -> dict[str, Any]:
    finetune = params["finetune"]
    return {
        "case": case.name,
        "kind": case.kind,
        "rate": case.rate,
        "variant": case.variant,
        "folds": case.folds,
        "network": params["networks"][0],
        "steps": finetune["budget"].get("steps") if case.has_budget else None,
        "batch_size": finetune["batch_size"] if case.has_budget else None,
        "weights": sha256_of_file(weights) if weights else None,
    }


def _relabelled(manifest: pa.Table, labels: NDArray[np.int64], class_names: tuple[str, ...]) -> pa.Table:
    columns = {"label": pa.array(labels), "label_name": pa.array([class_names[label] for label in labels.tolist()])}
    for name, column in columns.items():
        manifest = manifest.set_column(manifest.column_names.index(name), name, column)
    return manifest


def _hard_link(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    try:
        os.link(file.resolve(), place)
    except OSError:
        # Another file system, or one without links: a copy is as good, and takes its room.
        shutil.copyfile(file, place)
