"""Write wrong labels as several other networks would give them, to audit by `benchmarks.label_noise --labels`.

Noise by one network of the audited architecture and seed has the audited network's own confusions, which it cannot see.
So each wrong label comes from one of several networks of other architectures, chosen at random for each image. Train
them on the true labels with `finetune.folds`, so that they predict images that they did not see:

    networks: [resnet34, resnet50, resnet101]      # params.yaml, with finetune.folds: 2
    dvc repro extract@resnet34 extract@resnet50 extract@resnet101
    python -m benchmarks.network_noise --networks resnet34 resnet50 resnet101 --audited resnet18 --rate 0.09 \
        --out labels.csv
    python -m benchmarks.label_noise --labels labels.csv --params audited.yaml
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, read_json
from pipeline.artifacts.tables import read_parquet, write_csv
from pipeline.config.extractors import base_architecture
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.stages.harness import exit_codes


def noise_by_networks(
    truth: NDArray[np.int64], probabilities: NDArray[np.float32], rate: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return labels (N,) of which exactly round(rate x N) differ from `truth`.

    Each image gets one of the networks at random. Images are sampled without replacement in proportion to that
    network's probability of all other classes. A sampled image gets one of them in proportion to their probabilities.

    Args:
        truth: (N,) classes.
        probabilities: (M, N, C), of M networks.
        rate: 0 to 1.

    Raises:
        InputError: too few images have a probability of another class.
    """
    n, count = len(truth), round(rate * len(truth))
    rows = np.arange(n)
    others = probabilities[rng.integers(0, len(probabilities), size=n), rows].astype(np.float64)
    others[rows, truth] = 0
    weights = others.sum(axis=1)
    if (weights > 0).sum() < count:
        raise InputError(
            f"--rate: {rate:g} of {n} images are {count}, but the networks see another class in "
            f"{(weights > 0).sum()} only; give less, or train them for fewer steps"
        )
    wrong = rng.choice(n, size=count, replace=False, p=weights / weights.sum()) if count else rows[:0]
    labels = truth.copy()
    ends = np.cumsum(others[wrong], axis=1)
    # A class without probability has no width, so it is never sampled.
    labels[wrong] = (rng.uniform(size=(count, 1)) * ends[:, -1:] >= ends).sum(axis=1)
    return labels


def read_probabilities(data: DataPaths, networks: Sequence[str], audited: str) -> NDArray[np.float32]:
    """Return the probabilities (M, N, C) of M networks for the training images, out of fold.

    Raises:
        InputError: there is one network only, one has the audited architecture, or one predicts in sample.
    """
    if len(set(networks)) < 2:
        raise InputError(f"--networks: {', '.join(networks)}: give at least two different ones")
    stacked = []
    for network in networks:
        if base_architecture(network) == base_architecture(audited):
            raise InputError(f"--networks: {network} has the architecture of --audited {audited}; give others")
        if not read_parquet(data.predictions(network), {"fold": pa.int32()})["fold"].to_numpy().any():
            raise InputError(
                f"{data.predictions(network)}: {network} trained on the images that it predicts; set finetune.folds: 2"
            )
        stacked.append(np.asarray(open_array(data.probabilities(network), dtype=np.float32, ndim=2)))
    return np.stack(stacked)


def write_noise(
    data: DataPaths, networks: Sequence[str], rate: float, *, seed: int, out: Path, audited: str = "resnet18"
) -> NDArray[np.int64]:
    """Write the labels as a CSV file, and return the confusions (C, C): images by true class and label.

    Raises:
        InputError: as `read_probabilities` and `noise_by_networks`.
    """
    manifest = read_parquet(data.manifest("train"), {"path": pa.string(), "label": pa.int64()})
    names = np.array(read_json(data.prepare_metrics)["class_names"])
    truth = manifest["label"].to_numpy()
    labels = noise_by_networks(truth, read_probabilities(data, networks, audited), rate, np.random.default_rng(seed))
    write_csv(out, pa.table({"path": manifest["path"], "label": names[labels].tolist()}))
    confusions = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(confusions, (truth, labels), 1)
    return confusions


def main() -> None:
    """Write the labels, and print their number, and the confusions by class, as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.network_noise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with prepare/ and extract/")
    parser.add_argument("--networks", nargs="+", required=True, help="networks that give the wrong labels")
    parser.add_argument("--audited", required=True, help="network to audit, of another architecture")
    parser.add_argument("--rate", type=float, default=0.09, help="share of wrong labels, 0 to 1 (default: 0.09)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="CSV path,label of all training images")
    arguments = parser.parse_args()
    with exit_codes():
        if not 0 < arguments.rate < 1:
            raise InputError(f"--rate {arguments.rate:g}: not between 0 and 1; give one like 0.09")
        data = DataPaths(root=arguments.data)
        confusions = write_noise(
            data,
            arguments.networks,
            arguments.rate,
            seed=arguments.seed,
            out=arguments.out,
            audited=arguments.audited,
        )
        n_wrong = int(confusions.sum() - confusions.trace())
        print(json.dumps({"n_wrong": n_wrong, "confusions": confusions.tolist()}))


if __name__ == "__main__":
    main()
