"""Write data/overrides.csv that makes a filter the oracle: it drops planted wrong labels and keeps all other images.

With `prepare.plant_label_noise` the truth is known, and the largest possible gain of filtering can be measured:

    dvc repro prepare
    python -m benchmarks.oracle_overrides
    dvc repro train@law_steps

It refuses to replace decisions; use it in a clone of its own.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.artifacts.overrides import Override, read_overrides, write_overrides
from pipeline.artifacts.prepared import read_true_labels
from pipeline.artifacts.tables import read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.stages.harness import exit_codes

_NOTE = "oracle: planted labels dropped"


def oracle_overrides(data: DataPaths) -> list[Override]:
    """Return one decision for each training image, in the order of the manifest.

    Raises:
        InputError: no label was changed on purpose, or the manifest is missing or damaged.
    """
    true_labels = read_true_labels(data)
    if true_labels is None:
        raise InputError(f"{data.manifest('train')}: no label was planted; set prepare.plant_label_noise")
    rows = read_parquet(data.manifest("train"), ["path", "sha256", "label"]).to_pylist()
    return [
        Override(
            path=row["path"],
            sha256=row["sha256"],
            decision="keep" if row["label"] == truth else "drop",
            note=_NOTE,
            timestamp="",
            line=0,
        )
        for row, truth in zip(rows, true_labels.tolist(), strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Write the decisions and print their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the stages' files (default: data)")
    data = DataPaths(root=parser.parse_args(argv).data)
    with exit_codes():
        earlier = read_overrides(data.overrides) if data.overrides.exists() else []
        if any(override.note != _NOTE for override in earlier):
            raise InputError(f"{data.overrides}: has {len(earlier)} decisions; use a clone without any")
        overrides = oracle_overrides(data)
        write_overrides(data.overrides, overrides)
    dropped = sum(override.decision == "drop" for override in overrides)
    print(f"{data.overrides}: {dropped:,} of {len(overrides):,} images dropped, all others kept")


if __name__ == "__main__":
    main()
