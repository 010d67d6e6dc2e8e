"""The table of ways to exchange gradients, from the times of their rounds.

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
"""Torch's own way, which every launch has."""

_COLUMNS = ("network", "ranks", "nodes", "way", "images_per_s", "weak", "strong", "kept", "of_ddp", "top1")


def rows_of(found: Sequence[Mapping[str, Any]], batch_size: int) -> list[Row]:
    """The table; scaling is empty where one process was not measured.

    Args:
        found: by launches, in which torch's own way is first.
    """
    rows: list[Row] = []
    for network in dict.fromkeys(one["network"] for one in found):
        of_network = [one for one in found if one["network"] == network and "failed" not in one]
        alone = [one for one in of_network if one["ranks"] == 1]
        if alone:
            both = {key: [value for one in alone for value in one[key]] for key in ("weak", "top1")}
            rows.append(_row({**alone[0], **both, "way": "alone"}, batch_size))
        base = float(np.median([seconds for one in alone for seconds in one["weak"]])) if alone else None
        ddp: Sequence[float] = ()
        for one in found:
            if one["network"] != network or one["ranks"] == 1:
                continue
            if "failed" in one:
                rows.append({**dict.fromkeys(_COLUMNS, ""), **_names(one), "images_per_s": "failed"})
                continue
            ddp = one["weak"] if one["way"] == DDP else ddp
            rows.append(_row(one, batch_size, base, ddp))
    return rows


def _names(one: Mapping[str, Any]) -> dict[str, str | int]:
    return {key: one[key] for key in ("network", "ranks", "nodes", "way")}


def _row(one: Mapping[str, Any], batch_size: int, base: float | None = None, ddp: Sequence[float] = ()) -> Row:
    whole, ranks = np.array(one["weak"]), one["ranks"]
    of_base = base and {"weak": base / np.median(whole), "strong": base / ranks / np.median(one["strong"])}
    return {
        **dict.fromkeys(_COLUMNS, ""),
        **_names(one),
        "images_per_s": _spread(ranks * batch_size / whole, ".1f"),
        **({name: f"{value:.2f}" for name, value in of_base.items()} if of_base else {}),
        **({"kept": _spread(np.array(one["local"]) / whole, ".2f")} if ranks > 1 else {}),
        **({"of_ddp": _spread(np.array(ddp) / whole, ".2f")} if len(ddp) else {}),
        **({"top1": _spread(np.array(one["top1"]), ".3f")} if one["top1"] else {}),
    }


def _spread(values: NDArray[np.float64], digits: str) -> str:
    """The median, with the extremes."""
    return f"{np.median(values):{digits}} ({values.min():{digits}} to {values.max():{digits}})"


def main() -> None:
    """Print what `benchmarks.communication` has left, in a run for all networks or one for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="raw times, as --out of benchmarks.communication")
    parser.add_argument("--batch-size", type=int, default=32, help="of one process, as it was asked for there")
    arguments = parser.parse_args()
    found = [one for file in arguments.files for one in read_json(file)]
    print_table(rows_of(found, arguments.batch_size))


if __name__ == "__main__":
    main()
