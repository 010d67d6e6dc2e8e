"""A tiny project with a search, and the command in this process or in one of its own."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from made_up_training import write_project

from pipeline.__main__ import main
from pipeline.artifacts.tables import write_parquet
from pipeline.paths import TUNING_FIGURES, DataPaths

NAME = "lr"
SEARCH: Mapping[str, Any] = {
    "study": "tiny",
    "space": {
        "learning_rates": {"log_uniform": [0.01, 1.0]},
        "recipe.optimizer.momentum": {"choices": [0.0, 0.5, 0.9]},
    },
    "sampler": {"name": "random"},
    "trials": 5,
    "epochs": 4,
    "rule": {"name": "lead", "amount": 0.1, "kind": "absolute"},
    "places": 3,
    "seed": 1,
}


def write_search(
    folder: Path, *, dask: Mapping[str, Any] | None = None, train: Mapping[str, Any] | None = None, **changes: Any
) -> DataPaths:
    """A project of which every fourth training image is flagged `val`, with the search `lr`; None removes a key."""
    folder.mkdir(exist_ok=True)
    search = {key: value for key, value in {**SEARCH, **changes}.items() if value is not None}
    data = write_project(
        folder,
        study={"models": ["small_cnn"], "arms": ["full"], "batch_sizes": [16]},
        train={"optimizer": {"name": "sgd"}, "checkpoint": {"steps": 1}, **(train or {})},
        tuning={NAME: search},
        dask=dask or {},
    )
    manifest = pyarrow.parquet.read_table(data.manifest("train"))
    flags = pa.array(np.arange(len(manifest)) // 4 % 4 == 0)
    write_parquet(data.manifest("train"), manifest.append_column("val", flags))
    return data


def arguments(folder: Path, *names: str) -> list[str]:
    places = {"--params": folder / "params.yaml", "--data": folder / "data", "--work": folder / "work"}
    return [*(names or (NAME,)), *(str(part) for pair in places.items() for part in pair)]


def tune(folder: Path, *names: str) -> int:
    """The command in this process; its exit status."""
    threads = torch.get_num_threads()
    try:
        return main(["tune", *arguments(folder, *names)])
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        torch.set_num_threads(threads)


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "pipeline", "tune", *arguments(folder)]


def results_of(data: DataPaths) -> dict[str, bytes]:
    """What must not depend on how a search was run, byte by byte."""
    drawn = (data.tuning_figure(NAME, figure) for figure in TUNING_FIGURES)
    # Trials that all have one value have no figure of the keys.
    figures = [path for path in drawn if path.exists()]
    tables = (data.leaderboard(NAME), data.tuning_curves(NAME), data.tuning_summary(NAME))
    paths = (*tables, data.tuning_page(NAME), *figures)
    found = {path.name: path.read_bytes() for path in paths}
    # How long the context switch took is measured.
    summary = data.tuning_summary(NAME).name
    found[summary] = re.sub(rb'"context_switch": {[^}]*}', b"", found[summary])
    page = data.tuning_page(NAME).name
    found[page] = re.sub(rb'<p id="switching">.*</p>', b"", found[page])
    return found


def leaderboard_of(data: DataPaths) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.csv.read_csv(data.leaderboard(NAME)).to_pylist()
    return rows
