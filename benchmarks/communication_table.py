"""Print the table of gradient exchange methods from the raw times of `benchmarks.communication`.

python -m benchmarks.communication_table docs/results/throughput/2026-11-23-communication/vgg16.json
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.printing import Row, print_table
from pipeline.artifacts.files import read_json

DDP = "buckets of 25 MiB"
"""The default of torch's DistributedDataParallel, measured in every launch."""

_COLUMNS = ("network", "ranks", "nodes", "way", "images_per_s", "weak", "strong", "kept", "of_ddp", "top1")


def rows_of(measurements: Sequence[Mapping[str, Any]], batch_size: int) -> list[Row]:
    """Return the rows of the table; scaling is empty if one process was not measured.

    Args:
        measurements: by launch; the first of each launch is `DDP`.
    """
    rows: list[Row] = []
    for network in dict.fromkeys(entry["network"] for entry in measurements):
        complete = [entry for entry in measurements if entry["network"] == network and "failed" not in entry]
        single = [entry for entry in complete if entry["ranks"] == 1]
        if single:
            pooled = {key: [value for entry in single for value in entry[key]] for key in ("weak", "top1")}
            rows.append(_row({**single[0], **pooled, "way": "alone"}, batch_size))
        base = float(np.median([seconds for entry in single for seconds in entry["weak"]])) if single else None
        ddp: Sequence[float] = ()
        for entry in measurements:
            if entry["network"] != network or entry["ranks"] == 1:
                continue
            if "failed" in entry:
                rows.append({**dict.fromkeys(_COLUMNS, ""), **_names(entry), "images_per_s": "failed"})
                continue
            ddp = entry["weak"] if entry["way"] == DDP else ddp
            rows.append(_row(entry, batch_size, base, ddp))
    return rows


def _names(entry: Mapping[str, Any]) -> dict[str, str | int]:
    return {key: entry[key] for key in ("network", "ranks", "nodes", "way")}


def _row(entry: Mapping[str, Any], batch_size: int, base: float | None = None, ddp: Sequence[float] = ()) -> Row:
    seconds, ranks = np.array(entry["weak"]), entry["ranks"]
    scaling = base and {"weak": base / np.median(seconds), "strong": base / ranks / np.median(entry["strong"])}
    return {
        **dict.fromkeys(_COLUMNS, ""),
        **_names(entry),
        "images_per_s": _spread(ranks * batch_size / seconds, ".1f"),
        **({name: f"{value:.2f}" for name, value in scaling.items()} if scaling else {}),
        **({"kept": _spread(np.array(entry["local"]) / seconds, ".2f")} if ranks > 1 else {}),
        **({"of_ddp": _spread(np.array(ddp) / seconds, ".2f")} if len(ddp) else {}),
        **({"top1": _spread(np.array(entry["top1"]), ".3f")} if entry["top1"] else {}),
    }


def _spread(values: NDArray[np.float64], digits: str) -> str:
    """Format the median with the extremes."""
    return f"{np.median(values):{digits}} ({values.min():{digits}} to {values.max():{digits}})"


def main() -> None:
    """Print the table of one or several output files of `benchmarks.communication`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="raw times: --out of benchmarks.communication")
    parser.add_argument("--batch-size", type=int, default=32, help="of one process, as in that run")
    arguments = parser.parse_args()
    measurements = [entry for file in arguments.files for entry in read_json(file)]
    print_table(rows_of(measurements, arguments.batch_size))


if __name__ == "__main__":
    main()
