"""A CSV for `prepare.labels` that gives a known share of the prepared training images a wrong label.

For whole runs on labels that are wrong on purpose, with test labels as they are: `dvc repro prepare`, this,
`prepare.labels: FILE` in params.yaml, `dvc repro`.

    python -m benchmarks.plant_labels --rate 0.2 --out data/planted.csv
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.label_noise.cases import Case, Images, labels_of
from pipeline.artifacts.prepared import load_prepared
from pipeline.artifacts.tables import read_parquet, write_csv
from pipeline.paths import DataPaths


def main(argv: Sequence[str] | None = None) -> None:
    """Write the file and say how many labels are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the prepared images")
    parser.add_argument("--kind", choices=["symmetric", "asymmetric"], default="symmetric", help="asymmetric: CIFAR-10")
    parser.add_argument("--rate", type=float, default=0.2, help="of all images, or of asymmetric's five classes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="CSV to write, with the columns path and label")
    arguments = parser.parse_args(argv)
    paths = DataPaths(root=arguments.data)
    data = load_prepared(paths, folder=None)
    truth = data.train.labels
    images = Images(taken=np.ones(len(truth), np.bool_), truth=truth, given=None, class_names=data.class_names)
    labels = labels_of(Case(kind=arguments.kind, rate=arguments.rate), images, seed=arguments.seed, probabilities=None)
    names = read_parquet(paths.manifest("train"), ["path"])["path"]
    write_csv(arguments.out, pa.table({"path": names, "label": [data.class_names[label] for label in labels]}))
    print(f"{arguments.out}: {(labels != truth).sum():,} of {len(truth):,} labels are wrong")


if __name__ == "__main__":
    main()
