"""Find the networks that a study keeps in the ledger, and refuse weights that are not those of their run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.artifacts.prepared import PreparedData
from pipeline.errors import InputError
from pipeline.runs.ledger import Ledger, read_run_key
from pipeline.runs.record import check_checksums
from pipeline.training.weights import TrainedNetwork, load_trained


def is_kept(run: Mapping[str, Any], ledger: Ledger) -> bool:
    """Return whether a run, a row of data/train/<study>.parquet, finished and the ledger has its weights."""
    return run["status"] == "finished" and ledger.weights(run["fingerprint"]).exists()


def load_kept(run: Mapping[str, Any], ledger: Ledger, data: PreparedData, *, study: str) -> TrainedNetwork:
    """Load the network of a run that `is_kept`, on the CPU.

    Entries of earlier versions have no checksums: of these a network of another architecture, other classes or another
    image size is found.

    Raises:
        InputError: a file of the entry has changed, or is that of another run.
    """
    folder, path = ledger.folder(run["fingerprint"]), ledger.weights(run["fingerprint"])
    again = f"run `python -m pipeline.stages.train --study {study}`, which trains this run again"
    try:
        check_checksums(folder)
        key = read_run_key(folder)
        trained = load_trained(path)
    except InputError as error:
        raise InputError(f"{folder}: {_reason(error, folder, path)}; {again}") from None
    if key.fingerprint != folder.name:
        raise InputError(f"{folder}: is the entry of run {key.fingerprint}; {again}")
    expected = {"network": run["model"], "class_names": data.class_names, "image_size": data.image_size}
    found = {
        "network": trained.network, "class_names": trained.class_names, "image_size": trained.format.image_size,
    }  # fmt: skip
    for name, value in expected.items():
        if found[name] != value:
            shown = f"{name} {_short(found[name])}, and the run has {_short(value)}"
            raise InputError(f"{path}: has {shown}; remove {folder} and {again}")
    return trained


def _reason(error: InputError, folder: Path, path: Path) -> str:
    """Return what is wrong, without the name of the file, which comes first, and the advice of a reader of any file."""
    text = str(error).removeprefix(f"{folder}: ")
    return text.replace(str(path), path.name).partition("; ")[0]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
