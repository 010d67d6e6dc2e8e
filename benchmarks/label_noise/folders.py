"""Write the folder of a case: images, wrong labels and parameters, as the stages read them."""

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
from pipeline.commands.iterate.rounds import write_kept_images
from pipeline.config.params import Params, check_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths


def write_subset(source: DataPaths, target: DataPaths, mask: NDArray[np.bool_]) -> None:
    """Write prepare/ of `target`: the training images of `source` that `mask` (M,) selects, and all test images."""
    labels = read_parquet(source.manifest("train"), ["label"])["label"].to_numpy()
    write_kept_images(source, target, mask, labels)
    for file in (source.images("test"), source.manifest("test")):
        hard_link(file, target.prepare_metrics.with_name(file.name))


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
    """Write the inputs of the stages and truth.npy; write case.json last, which marks the folder as complete.

    Args:
        base: prepared images (N).
        labels: (N,) labels to train on.
        truth: (N,) true labels.
        params: result of `case_params`.
        weights: the file of weights that `params` names.

    Raises:
        InputError: parameters contradict each other.
    """
    check_params(params, source=f"--params for {case.name}")
    data = DataPaths(root=folder / "data")
    for file in (base.images("train"), base.images("test"), base.manifest("test"), base.prepare_metrics):
        hard_link(file, data.prepare_metrics.with_name(file.name))
    write_parquet(data.manifest("train"), relabeled(read_parquet(base.manifest("train")), labels, class_names))
    write_overrides(data.overrides, [])
    write_array(folder / "truth.npy", truth)
    with atomic_path(folder / "params.yaml") as temporary, temporary.open("w", encoding="utf-8") as text:
        YAML(typ="safe", pure=True).dump(params, text)
    write_json(folder / "case.json", _record(case, params, weights))


def is_complete(folder: Path, case: Case, params: dict[str, Any], weights: Path | None) -> bool:
    """Return whether `make_folder` has finished with the same arguments.

    Raises:
        InputError: it has finished with other arguments.
    """
    file = folder / "case.json"
    if not file.exists():
        return False
    existing, expected = read_json(file), _record(case, params, weights)
    different = [key for key in expected if existing.get(key) != expected[key]]
    if different:
        raise InputError(f"{file}: is of another {different[0]}; choose another --work, or delete that folder")
    return True


def case_params(params: Params, case: Case, *, steps: int | None, weights: Path | None) -> dict[str, Any]:
    """Return the parameters of a case, with the first network alone.

    Args:
        steps: training steps of each network; None if no network is trained. `one_cycle` has no duration and stays.
            Any other schedule becomes a cosine after a warm-up of 10 %.
        weights: file with initial weights; None for random ones.
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
        if not keeps_schedule(params):
            finetune["schedule"] = {"name": "cosine", "warmup": {"steps": steps // 10}}
    studies = {name: {**study, "filter_network": network, "needs": "filter"} for name, study in tree["studies"].items()}
    return {**tree, "networks": [network], "finetune": finetune, "studies": studies}


def keeps_schedule(params: Params) -> bool:
    """Return whether the cases train by the schedule of the file: one that has no duration of its own."""
    return params.finetune.schedule.name == "one_cycle"


def _record(case: Case, params: dict[str, Any], weights: Path | None) -> dict[str, Any]:
    finetune = params["finetune"]
    parts = {"parts": list(case.parts)} if case.parts else {}
    return {
        **parts,
        "case": case.name,
        "kind": case.kind,
        "rate": case.rate,
        "variant": case.variant,
        "folds": case.folds,
        "network": params["networks"][0],
        "steps": finetune["budget"].get("steps") if case.has_budget else None,
        "batch_size": finetune["batch_size"] if case.has_budget else None,
        "weights": sha256_of_file(weights) if weights else None,
        **({"drop_share": case.drop_share} if case.variant == "two_rounds" else {}),
    }


def relabeled(manifest: pa.Table, labels: NDArray[np.int64], class_names: tuple[str, ...]) -> pa.Table:
    """Return a manifest with other labels (N,) and their names."""
    columns = {"label": pa.array(labels), "label_name": pa.array([class_names[label] for label in labels.tolist()])}
    for name, column in columns.items():
        manifest = manifest.set_column(manifest.column_names.index(name), name, column)
    return manifest


def hard_link(file: Path, link: Path) -> None:
    """Create or replace a hard link to a file, or a copy where the file system has none."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    try:
        os.link(file.resolve(), link)
    except OSError:
        # Another file system, or one without links: copy.
        shutil.copyfile(file, link)
