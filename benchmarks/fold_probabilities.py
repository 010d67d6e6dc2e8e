"""Compare out-of-fold with averaged probabilities at finding planted wrong labels, and what the averages cost.

For each seed, kind of noise and number of folds it runs the stages prepare, finetune and extract of presets/digits.yaml
with a tenth of the labels changed, and extracts again with `extract.fold_probabilities: averaged`. It prints the
AUROC and the precision of the 10 % most suspect images, by both kinds of probabilities. The result chooses nothing.

    python -m benchmarks.fold_probabilities --folds 2 5 --seeds 0 1 2
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML
from sklearn.metrics import roc_auc_score

from benchmarks.printing import Row, print_table
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.prepared import read_true_labels
from pipeline.artifacts.tables import read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.registry import SCORERS

NETWORK, NOISE = "resnet18", 0.1
SCORERS_READING_FOLDS = ("self_confidence", "margin", "label_odds")
PROBABILITIES = ("out_of_fold", "averaged")


def measure(folder: Path, *, kind: str, folds: int, seed: int) -> list[dict[str, Any]]:
    """Run the stages in `folder`; returns a record for each scorer and kind of probabilities."""
    data = DataPaths(root=folder / "data")
    _write_params(folder, kind=kind, folds=folds, seed=seed, probabilities="out_of_fold")
    _run("prepare", folder)
    finetune_s = _run("finetune", folder)
    records = []
    for probabilities in PROBABILITIES:
        _write_params(folder, kind=kind, folds=folds, seed=seed, probabilities=probabilities)
        extract_s = _run("extract", folder)
        inputs, wrong = _inputs(data)
        for name in SCORERS_READING_FOLDS:
            scores = SCORERS[name].values(inputs)
            first = np.argsort(-scores, kind="stable")[: round(NOISE * len(scores))]
            records.append(
                {
                    "noise": kind,
                    "folds": folds,
                    "seed": seed,
                    "scorer": name,
                    "probabilities": probabilities,
                    "auroc": float(roc_auc_score(wrong, scores)),
                    "precision": float(wrong[first].mean()),
                    "top1": read_json(data.finetune_metrics(NETWORK))["top1"],
                    "finetune_s": finetune_s,
                    "extract_s": extract_s,
                }
            )
    return records


def _write_params(folder: Path, *, kind: str, folds: int, seed: int, probabilities: str) -> None:
    tree: dict[str, Any] = YAML(typ="safe", pure=True).load(Path("presets/digits.yaml"))
    tree["prepare"]["plant_label_noise"] = {"fraction": NOISE, "kind": kind, "seed": seed}
    tree["finetune"] |= {"folds": folds, "seed": seed}
    tree["extract"] |= {"fold_probabilities": probabilities}
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(tree, file)


def _run(stage: str, folder: Path) -> float:
    """Run one stage; returns its wall seconds."""
    options = ["--params", "params.yaml", "--data", "data", "--work", ".work"]
    named = ["--network", NETWORK] if stage != "prepare" else []
    command = [sys.executable, "-m", f"pipeline.stages.{stage}", *named]
    command += [part if part.startswith("--") else str(folder / part) for part in options]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{stage}: {done.stderr.strip()[-500:]}")
    return time.perf_counter() - start


def _inputs(data: DataPaths) -> tuple[ScorerInputs, NDArray[np.bool_]]:
    """Return what the scorers read, and which labels are wrong (N,)."""
    labels = read_parquet(data.manifest("train"), ["label"])["label"].to_numpy()
    true_labels = read_true_labels(data)
    assert true_labels is not None
    inputs = ScorerInputs(
        labels=labels,
        probabilities=np.load(data.probabilities(NETWORK)),
        training_confidence=np.load(data.training_confidence(NETWORK)),
        folds=read_parquet(data.predictions(NETWORK), ["fold"])["fold"].to_numpy(),
    )
    return inputs, true_labels != labels


def main() -> None:
    """Print the table, and write all records to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["symmetric"], help="of prepare.plant_label_noise")
    parser.add_argument("--folds", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="JSON file")
    arguments = parser.parse_args()
    records: list[dict[str, Any]] = []
    for kind in arguments.kinds:
        for folds in arguments.folds:
            for seed in arguments.seeds:
                with tempfile.TemporaryDirectory() as folder:
                    records += measure(Path(folder), kind=kind, folds=folds, seed=seed)
                if arguments.out:
                    write_json(arguments.out, records)
    print_table(_rows(records))


def _rows(records: list[dict[str, Any]]) -> list[Row]:
    keys = ("noise", "folds", "scorer")
    rows: list[Row] = []
    for case in dict.fromkeys(tuple(record[key] for key in keys) for record in records):
        row: dict[str, str] = dict(zip(keys, map(str, case), strict=True))
        for measure_name in ("auroc", "precision"):
            by_kind = [
                np.array(
                    [
                        record[measure_name]
                        for record in records
                        if tuple(record[key] for key in keys) == case and record["probabilities"] == kind
                    ]
                )
                for kind in PROBABILITIES
            ]
            gain = by_kind[1] - by_kind[0]
            row[f"{measure_name}_out_of_fold"] = f"{by_kind[0].mean():.4f}"
            row[f"{measure_name}_averaged"] = f"{by_kind[1].mean():.4f}"
            row[f"{measure_name}_gain"] = f"{gain.mean():+.4f} ({gain.min():+.4f} to {gain.max():+.4f})"
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
