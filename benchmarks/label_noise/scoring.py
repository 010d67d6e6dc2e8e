"""Phase (b): run the scorers on a case; measure their detection, time and memory. Imports no torch."""

import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.label_noise.choices import CHOICES, COMPARISONS, OTHERS, needs_cleanlab
from benchmarks.label_noise.detection import Interval, ScorerComparison, compare
from benchmarks.label_noise.evidence import read_evidence
from benchmarks.label_noise.own_process import in_own_process
from pipeline.artifacts.files import open_array, read_json, write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.commands.iterate.rounds import STAGES
from pipeline.paths import DataPaths
from pipeline.scoring.registry import SCORERS, check_scorer, split_options


def suspicion(name: str, data: DataPaths, network: str) -> tuple[NDArray[np.float64], float]:
    """Return the suspicion (N,) of the training images by one of `choices.NAMES`, and its seconds without reading.

    Raises:
        InputError: a file is missing or damaged, or an input of the scorer is missing.
    """
    evidence = read_evidence(data, network)
    inputs = evidence.scorer_inputs
    if needs_cleanlab(name):
        for module in ("cleanlab.filter", "cleanlab.rank", "cleanlab.outlier"):
            importlib.import_module(module)
    if name in CHOICES:
        check_scorer(inputs, CHOICES[name], evidence.class_names, f"--scorers {name}")
    start = time.perf_counter()
    if name in OTHERS:
        values = OTHERS[name](inputs, evidence.features)
    else:
        scorer, options = split_options(CHOICES[name])
        values = SCORERS[scorer].values(inputs, **options)
    return values, time.perf_counter() - start


def score_case(folder: Path, names: Sequence[str], *, default: str, resamples: int) -> dict[str, Any]:
    """Write and return results.json of a case: the case, the result of `filter`, and each scorer's measures and cost.

    Args:
        names: some of `choices.NAMES`, `default` among them; empty if no label is wrong.
        default: the scorer whose advantage over each of `choices.COMPARISONS` among `names` is reported.
        resamples: number of bootstrap resamples.

    Raises:
        InputError: as `suspicion`.
    """
    case = read_json(folder / "case.json")
    data, network = DataPaths(root=folder / "data"), case["network"]
    # One process per scorer, and one scorer at a time.
    scored = {name: in_own_process(suspicion, name, data, network) for name in names}
    wrong = _wrong_labels(folder, data)
    values = {name: scores for name, ((scores, _), _) in scored.items()}
    comparison = ScorerComparison(measured={}, differences={})
    if values:
        comparison = compare(values, wrong, reference=default, resamples=resamples)
    results = {
        **case,
        **_extractor(data, network, case, len(wrong)),
        "n": len(wrong),
        "n_wrong": int(wrong.sum()),
        "filter": _filter_result(data, network, wrong),
        "stages": _resources([folder, *(folder.with_name(part) for part in case.get("parts", []))]),
        "resamples": resamples,
        "scorers": {
            name: {
                "seconds": seconds,
                "peak_memory_mb": peak,
                "measures": {key: asdict(interval) for key, interval in comparison.measured[name].items()},
            }
            for name, ((_, seconds), peak) in scored.items()
        },
        "default": default,
        "advantage": {
            name: {key: asdict(_negated(interval)) for key, interval in comparison.differences[name].items()}
            for name in names
            if name in COMPARISONS and name != default
        },
    }
    write_json(folder / "results.json", results)
    return results


def _wrong_labels(folder: Path, data: DataPaths) -> NDArray[np.bool_]:
    """Return which labels (N,) are wrong."""
    labels = read_parquet(data.manifest("train"), {"label": pa.int64()})["label"].to_numpy()
    truth = open_array(folder / "truth.npy", dtype=np.int64, ndim=1, rows=len(labels))
    return np.asarray(labels != truth)


def _extractor(data: DataPaths, network: str, case: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Return the extractor's accuracies, 0 to 1, and the epochs of each network on its training images."""
    n_train = n if case["folds"] == 1 else n * (case["folds"] - 1) / case["folds"]
    return {
        "epochs": case["steps"] * case["batch_size"] / n_train if case["steps"] else None,
        "test_top1": read_json(data.finetune_metrics(network))["top1"],
        "train_top1": read_json(data.extract_metrics(network))["train_top1"],
    }


def _filter_result(data: DataPaths, network: str, wrong: NDArray[np.bool_]) -> dict[str, Any] | None:
    """Return what the stage `filter` dropped: precision is None if it dropped no image. None if it has not run."""
    if not data.points(network).exists():
        return None
    noise = read_parquet(data.points(network), {"is_noise": pa.bool_()})["is_noise"].to_numpy()
    hits, dropped = int((noise & wrong).sum()), int(noise.sum())
    return {
        "n_dropped": dropped,
        "precision": hits / dropped if dropped else None,
        "recall": hits / int(wrong.sum()),
    }


def _resources(folders: Sequence[Path]) -> dict[str, Any]:
    """Return, for each stage that has run, the wall seconds of its last runs in all folders, and their peak memory."""
    stages = {}
    for stage in STAGES:
        files = [file for folder in folders for file in sorted((folder / "work/resources").glob(f"{stage}@*.json"))]
        runs = [read_json(file) for file in files]
        if runs:
            stages[stage] = {
                "wall_s": sum(run["wall_s"] for run in runs),
                "peak_memory_mb": max(run["peak_memory_mb"] for run in runs),
            }
    return stages


def _negated(interval: Interval) -> Interval:
    # A minus sign would turn 0 into -0.
    return Interval(value=0 - interval.value, low=0 - interval.high, high=0 - interval.low)
