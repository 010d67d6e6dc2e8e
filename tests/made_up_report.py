"""Made-up artefacts of all stages before the report, small and in the contracts' format."""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from ruamel.yaml import YAML

from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import lists, read_parquet, write_csv, write_parquet
from pipeline.config.params import Params, check_params
from pipeline.paths import DataPaths
from pipeline.selection.budgets import score

ROOT = Path(__file__).parents[1]

# As hostile as folder names can be: markup, an address to fetch, a formula, an entry that legends hide.
CLASS_NAMES = ("<script>alert(1)</script>", '</script><img src="http://evil.example/x.png">', "$\\frac{&$", "_ship")

N_TRAIN, N_TEST, SIZE = 80, 40, 8

EPS = 1.5
"""The radius at which the made-up filter stands."""

_MEASURED = ("top1", "balanced_accuracy", "loss", "critical_batch", "critical_batch_low", "critical_batch_high")

Outcome = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From a cell's row to what differs in it, e.g. {"top1": .9} or {"status": "skipped", "reason": "..."}."""


def params_with(networks: list[str] | None = None, **study: Any) -> Params:
    """tests/params.yaml with other networks and other keys of its study."""
    return check_params(params_tree(networks, **study), source="params.yaml")


def params_tree(networks: list[str] | None = None, **study: Any) -> dict[str, Any]:
    """The same before validation."""
    tree: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "tests" / "params.yaml").read_text())
    tree["networks"] = networks or ["resnet18", "resnet34"]
    tree["prepare"]["image_size"] = SIZE
    tree["studies"]["digits"].update(study)
    return tree


def default_outcome(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Filtered .90, random .88, full .895, a little less at larger batches; noise by the seed."""
    base = {"filtered": 0.90, "random": 0.88, "full": 0.895, "random_uniform": 0.87}[row["arm"]]
    noise = np.random.default_rng([row["seed"], row["batch_size"], len(row["arm"])]).normal(0, 0.004)
    top1 = base - 0.01 * np.log2(row["batch_size"] / 32) + noise
    return {"top1": top1, "balanced_accuracy": top1 - 0.01}


def write_artifacts(data: DataPaths, params: Params, outcome: Outcome = default_outcome) -> None:
    """Everything that `report` reads, for all networks and studies of `params`."""
    write_prepared(data)
    for network in params.networks:
        write_network(data, network)
    for name in params.studies:
        write_study(data, params, name, outcome)


def write_prepared(data: DataPaths) -> None:
    rng = np.random.default_rng(0)
    for split, n in (("train", N_TRAIN), ("test", N_TEST)):
        labels = np.arange(n) % len(CLASS_NAMES)
        paths = [f"{CLASS_NAMES[label]}/{row}.png" for row, label in enumerate(labels)]
        columns = {
            "sample_id": np.arange(n),
            "path": paths,
            "label": labels,
            "label_name": [CLASS_NAMES[label] for label in labels],
            "sha256": [hashlib.sha256(path.encode()).hexdigest() for path in paths],
        }
        write_parquet(data.manifest(split), pa.table(columns))
        write_array(data.images(split), rng.integers(0, 256, (n, SIZE, SIZE, 3), dtype=np.uint8))
    write_json(
        data.prepare_metrics,
        {"class_names": CLASS_NAMES, "image_size": SIZE, "mean": [0.5] * 3, "std": [0.2] * 3},
    )
    _provenance(data, "prepare")


def write_network(data: DataPaths, network: str, *, dropped: int = 6, seed: int = 0) -> None:
    """The last `dropped` training images are noise; the places on the map are those of `seed`."""
    rng = np.random.default_rng([len(network), seed])
    labels = np.arange(N_TRAIN) % len(CLASS_NAMES)
    keep = np.arange(N_TRAIN) < N_TRAIN - dropped
    xy = rng.normal(size=(N_TRAIN, 2)).astype(np.float32)
    paths = [f"{CLASS_NAMES[label]}/{row}.png" for row, label in enumerate(labels)]
    radii = np.concatenate([np.linspace(0, EPS, N_TRAIN - dropped), np.linspace(2 * EPS, 9 * EPS, dropped)])
    neighbours = (np.arange(N_TRAIN)[:, None] + [1, 2, 3]) % N_TRAIN
    points = pa.table(
        {
            "sample_id": np.arange(N_TRAIN),
            "path": paths,
            "sha256": [hashlib.sha256(path.encode()).hexdigest() for path in paths],
            "label": labels,
            "label_name": [CLASS_NAMES[label] for label in labels],
            "predicted": np.roll(labels, 1),
            "confidence": np.linspace(0.5, 1, N_TRAIN, dtype=np.float32),
            "x": xy[:, 0].copy(),
            "y": xy[:, 1].copy(),
            "cluster": np.where(keep, 0, -1).astype(np.int32),
            "is_noise": ~keep,
            "eps": np.full(N_TRAIN, EPS),
            "score": score(radii, EPS),
            "reason": [f"3 of 5 nearest neighbours are {CLASS_NAMES[1]}"] * N_TRAIN,
            "neighbours": lists(neighbours.astype(np.int32)),
            "neighbour_labels": lists(labels[neighbours]),
            "keep": keep,
        }
    )
    write_parquet(data.points(network), points)
    write_csv(data.kept(network), points.filter(pa.array(keep)).select(["sample_id", "path", "label_name"]))
    write_json(
        data.filter_metrics(network),
        {
            "eps": EPS,
            "achieved_share": dropped / N_TRAIN,
            "settings": {"scorer": {"name": "dbscan", "space": "map", "min_samples": 5}, "eps": None},
            "stability_over_maps": [],
            "requested_share": 0.05,
            "share_note": None,
            "curve": {"eps": [0.5, 1.0, 2.0], "share": [0.5, 0.2, 0.0]},
        },
    )
    recalls = dict.fromkeys(CLASS_NAMES, 0.91)
    write_json(data.finetune_metrics(network), {"top1": 0.925, "balanced_accuracy": 0.91, "recall_per_class": recalls})
    write_json(
        data.reduce_metrics(network),
        {
            "kl_divergence": 1.25,
            "neighbour_preservation": 0.6,
            "knn_label_accuracy": {"components": 0.9, "map": 0.85},
            "pca": {
                "explained_variance_ratio": 0.99,
                "explained_variance_ratio_per_component": [0.6, 0.3, 0.09],
            },
        },
    )
    test_xy = rng.normal(size=(N_TEST, 2)).astype(np.float32)
    columns = {"sample_id": np.arange(N_TEST), "x": test_xy[:, 0].copy(), "y": test_xy[:, 1].copy()}
    write_parquet(data.embedding(network, "test"), pa.table(columns))
    for stage in ("finetune", "extract", "reduce", "filter"):
        _provenance(data, stage, network)


def write_evidence(data: DataPaths, network: str) -> None:
    """What the filter read to write the points of `network`: predictions, the map and the components."""
    columns = ["sample_id", "x", "y", "predicted", "confidence", "neighbours"]
    table = read_parquet(data.points(network), columns)
    xy = np.column_stack([table["x"].to_numpy(), table["y"].to_numpy()])
    write_array(data.maps(network), xy[None])
    write_array(data.components(network), np.hstack([xy, xy[::-1]]))
    write_parquet(data.embedding(network), table.select(["sample_id", "x", "y", "neighbours"]))
    write_parquet(data.predictions(network), table.select(["sample_id", "predicted", "confidence"]))
    predicted, confidence = table["predicted"].to_numpy(), table["confidence"].to_numpy()
    others = (1 - confidence) / (len(CLASS_NAMES) - 1)
    probabilities = np.repeat(others[:, None], len(CLASS_NAMES), axis=1)
    probabilities[np.arange(N_TRAIN), predicted] = confidence
    write_array(data.probabilities(network), probabilities)
    labels = read_parquet(data.manifest("train"), ["label"])["label"].to_numpy()
    write_array(data.training_confidence(network), probabilities[np.arange(N_TRAIN), labels].astype(np.float32))


def write_study(data: DataPaths, params: Params, name: str, outcome: Outcome = default_outcome) -> None:
    study = params.studies[name]
    grid = itertools.product(
        study.models, study.batch_sizes, study.learning_rates, study.weight_decays, study.seeds, study.arms
    )
    rows: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = []
    for model, batch_size, learning_rate, weight_decay, seed, arm in grid:
        row: dict[str, Any] = {
            "study": name,
            "bn_group": batch_size,
            "settings": json.dumps(
                {
                    "crop_padding": 1,
                    "flip": False,
                    "format": {"image_size": 8, "crop_size": 8},
                    "learning_rate": learning_rate * 2,
                }
            ),
            "fingerprint": f"{name}-{len(rows)}",
            "status": "finished",
            "reason": "",
            "model": model,
            "arm": arm,
            "filter_network": study.filter_network,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "peak_learning_rate": learning_rate * 2,
            "weight_decay": weight_decay,
            "seed": seed,
            "n_train": N_TRAIN if arm == "full" else N_TRAIN - 6,
            "steps": 45,
            "epochs": 45 * batch_size / N_TRAIN,
        }
        row |= {**dict.fromkeys(_MEASURED), "loss": 1.5, **outcome(row)}
        rows.append(row)
        if row["status"] != "skipped":
            history += [
                {
                    "fingerprint": row["fingerprint"],
                    "examples": step * batch_size,
                    "train_loss": 2.3 / step + seed / 10,
                    "top1": step / 100 if study.accuracy_every and step < 45 else None,
                    "test_loss": 2.4 / step if study.accuracy_every and step < 45 else None,
                }
                for step in (1, 15, 45)
            ]
    columns = [("fingerprint", pa.string()), ("examples", pa.int64())]
    columns += [(name, pa.float64()) for name in ("train_loss", "top1", "test_loss")]
    measured = [(name, pa.float64()) for name in _MEASURED]
    write_parquet(data.runs(name), _table(rows, measured))
    write_parquet(data.history(name), pa.Table.from_pylist(history, schema=pa.schema(columns)))
    write_array(data.correct(name), _correct(rows))
    _provenance(data, "train", name)


def _correct(rows: list[dict[str, Any]]) -> NDArray[np.bool_]:
    """(runs, N_TEST), as many images as nearest to each run's top-1; which ones is chance."""
    rng = np.random.default_rng(1)
    shares = np.nan_to_num([row["top1"] or 0.0 for row in rows])
    return np.stack([rng.permutation(N_TEST) < round(share * N_TEST) for share in shares.tolist()])


def _table(rows: list[dict[str, Any]], measured: list[tuple[str, pa.DataType]]) -> pa.Table:
    """Inferred types, but for columns that may be empty throughout."""
    known = pa.Table.from_pylist([{k: v for k, v in row.items() if k not in dict(measured)} for row in rows])
    for column, kind in measured:
        known = known.append_column(column, pa.array([row[column] for row in rows], kind))
    return known


def _provenance(data: DataPaths, stage: str, item: str | None = None) -> None:
    write_provenance(data.provenance(stage, item), stage=stage, parameters={}, inputs=[], outputs=[])
