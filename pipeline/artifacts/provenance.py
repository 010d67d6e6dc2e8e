"""Which versions, parameters and inputs made a set of files."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.artifacts.json_file import write_json

# The packages that decide the content of some artefact. Python's own version decides none, and differs where
# requirements.lock is installed: it stands with the costs, so that equal results are equal files.
_PACKAGES = ("numpy", "opentsne", "pillow", "pyarrow", "scikit-learn", "scipy", "timm", "torch", "torchvision")


def sha256_of_file(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_provenance(
    path: Path,
    *,
    stage: str,
    parameters: Mapping[str, Any],
    inputs: Sequence[Path],
    outputs: Sequence[Path],
) -> None:
    """Record how `outputs` came about. No dates and no machine names: equal results, equal bytes.

    Files are named relative to the folder of `path`, wherever the data lie.
    """
    write_json(
        path,
        {
            "stage": stage,
            "parameters": dict(parameters),
            "versions": _versions(),
            "inputs": _digests(inputs, path.parent),
            "outputs": _digests(outputs, path.parent),
        },
    )


def _digests(files: Sequence[Path], folder: Path) -> dict[str, str]:
    return {os.path.relpath(file, folder): sha256_of_file(file) for file in files}


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
