"""The training dynamics of an extractor, data/finetune/<network>.dynamics.parquet: a row per training image."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.errors import InputError

_COLUMNS = {"sample_id": pa.int64(), "margin": pa.float32(), "forgetting": pa.float32()}


def write_dynamics(path: Path, margin: NDArray[np.float32], forgetting: NDArray[np.float32]) -> None:
    """Write the averaged margins and the forgetting events, (N,) each, NaN where not recorded."""
    columns = {"sample_id": np.arange(len(margin)), "margin": margin, "forgetting": forgetting}
    write_parquet(path, pa.table(columns, schema=pa.schema(_COLUMNS)))


def read_dynamics(path: Path, n: int) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Read margins and forgetting events, (n,) each.

    Returns:
        None if nothing was recorded: by an earlier version, which wrote no such file, or of a head that was fitted.

    Raises:
        InputError: the file is damaged, or of other images.
    """
    if not path.exists():
        return None
    table = read_parquet(path, _COLUMNS)
    if not np.array_equal(table["sample_id"].to_numpy(), np.arange(n)):
        raise InputError(
            f"{path}: its {len(table)} rows are not those of the {n} training images; delete it and run `dvc repro`"
        )
    margin, forgetting = table["margin"].to_numpy(), table["forgetting"].to_numpy()
    if np.isinf(margin).any() or np.nanmin(forgetting, initial=0) < 0:
        raise InputError(f"{path}: has values that no training gives; delete it and run `dvc repro`")
    return None if np.isnan(margin).all() else (margin, forgetting)
