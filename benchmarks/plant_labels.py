"""A CSV for `prepare.labels` that gives a known share of the prepared training images a wrong label, drawn evenly.

For whole runs on labels that are wrong on purpose, with test labels as they are: `dvc repro prepare`, this,
`prepare.labels: FILE` in params.yaml, `dvc repro`. A file that is written anew wants `dvc repro --force prepare`.

    python -m benchmarks.plant_labels --rate 0.2 --out data/planted.csv
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.tables import read_parquet, write_csv
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.selection.noise import plant
from pipeline.stages.harness import exit_codes


def main(argv: Sequence[str] | None = None) -> None:
    """Write the file and say how many labels are wrong.

    Raises:
        InputError: no prepared images, or ones whose labels a file has changed already.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the prepared images")
    parser.add_argument("--rate", type=float, default=0.2, help="share of the images, 0 to 1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="CSV to write, with the columns path and label")
    arguments = parser.parse_args(argv)
    if not 0 <= arguments.rate <= 1:
        parser.error(f"--rate {arguments.rate}: give a share from 0 to 1")
    data = DataPaths(root=arguments.data)
    metrics, manifest = read_json(data.prepare_metrics), read_parquet(data.manifest("train"), ["path", "label"])
    if metrics.get("n_relabelled") is not None:
        raise InputError(
            f"{data.prepare_metrics}: a file has changed the labels; remove prepare.labels and run `dvc repro prepare`"
        )
    truth = manifest["label"].to_numpy().astype(np.int64)
    labels = plant(truth, "symmetric", arguments.rate, rng=np.random.default_rng(arguments.seed))
    names = [metrics["class_names"][label] for label in labels]
    write_csv(arguments.out, pa.table({"path": manifest["path"], "label": names}))
    print(f"{arguments.out}: {(labels != truth).sum():,} of {len(truth):,} labels are wrong")


if __name__ == "__main__":
    with exit_codes():
        main()
