"""Made-up results of whole experiments: studies and filters, in the contracts' format."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import write_csv, write_parquet
from pipeline.paths import DataPaths

Change = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From a cell's row to what differs in it."""


def cells(
    *,
    arms: Sequence[str] = ("full", "filtered"),
    batch_sizes: Sequence[int] = (32, 128),
    seeds: Sequence[int] = (0, 1, 2),
    networks: Sequence[str] = ("resnet18",),
    change: Change = lambda row: {},
) -> list[dict[str, Any]]:
    """Rows of a study as `train` writes them, all of top-1 .9, in the columns that a comparison looks at."""
    grid = [
        (arm, network, batch_size, seed)
        for arm, batch_size, seed in itertools.product(arms, batch_sizes, seeds)
        for network in (networks[:1] if arm == "full" else networks)
    ]
    rows = []
    for arm, network, batch_size, seed in grid:
        row: dict[str, Any] = {
            "fingerprint": f"{arm} {network} {batch_size} {seed}",
            "status": "finished",
            "model": "resnet18",
            "arm": arm,
            "filter_network": network,
            "batch_size": batch_size,
            "simulated_workers": 1,
            "optimizer": "sgd",
            "learning_rate": 0.02,
            "weight_decay": 5e-4,
            "seed": seed,
            "n_train": 80,
            "top1": 0.9,
            "settings": json.dumps({"batch_size": batch_size, "clip_norm": None}),
        }
        rows.append(row | change(row))
    return rows


def gains(gain: Callable[[Mapping[str, Any]], float]) -> Change:
    """Another experiment's runs, `gain` (-1 to 1) better in top-1."""
    return lambda row: {"fingerprint": f"other {row['fingerprint']}", "top1": row["top1"] + gain(row)}


def write_experiment(
    data: Path,
    studies: Mapping[str, Sequence[Mapping[str, Any]]],
    kept: Mapping[str, Sequence[str]] | None = None,
    n_total: int = 10,
    margin: float | None = None,
    confidence: float = 0.95,
    n_images: int = 10_000,
    tested: Sequence[tuple[str, str]] = (("image 1", "cat"), ("image 2", "dog")),
) -> Path:
    """The data folder with these cells by study, and the paths that each network's filter kept; returns it.

    With a `margin` (percentage points) also what a report records of its parameters.

    Args:
        tested: hash and label of each test image.
    """
    paths = DataPaths(root=data)
    hashes, labels = zip(*tested, strict=True)
    write_parquet(paths.manifest("test"), pa.table({"sha256": hashes, "label_name": labels}))
    files = {"test.npy": f"pixels of {hashes}", "test.parquet": f"labels of {tested}"}
    write_json(paths.provenance("prepare"), {"outputs": files})
    for study, rows in studies.items():
        write_parquet(paths.runs(study), pa.Table.from_pylist([dict(row) for row in rows]))
        write_array(paths.correct(study), np.zeros((len(rows), n_images), dtype=np.bool_))
        inputs = {f"../prepare/{name}": digest for name, digest in files.items()}
        write_json(paths.provenance("train", study), {"inputs": inputs})
    for network, names in (kept or {}).items():
        columns = {"sample_id": list(range(len(names))), "path": list(names), "label_name": ["a"] * len(names)}
        write_csv(paths.kept(network), pa.table(columns))
        write_json(paths.filter_metrics(network), {"n_total": n_total})
    if margin is not None:
        parameters = {"report": {"margin": margin, "primary": "random", "confidence": confidence}}
        write_provenance(paths.provenance("report"), stage="report", parameters=parameters, inputs=[], outputs=[])
    return data
