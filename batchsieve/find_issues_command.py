"""`batchsieve find-issues`: rank suspect labels of arrays in files, without a project.

    batchsieve find-issues --labels y.npy --features f.npy --out issues.csv

The table has a row for each sample, the most suspect first: sample (its position, from 0), label, score (0 to 1),
is_issue, suggested_label, suggested_probability (0 to 1) and reason.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from batchsieve.issues import LabelIssues, LabelScorer, find_issues
from pipeline.artifacts.files import ObjectArrayError, map_array
from pipeline.artifacts.tables import protect_cells, write_csv
from pipeline.errors import InputError, printable


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="batchsieve find-issues", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", type=Path, required=True, help=".npy, integers or strings (N,)")
    parser.add_argument("--pred-probs", type=Path, help=".npy, out-of-fold class probabilities (N, C)")
    parser.add_argument("--features", type=Path, help=".npy, numbers (N, D)")
    parser.add_argument("--scorer", choices=get_args(LabelScorer), default="label_odds", help="default: label_odds")
    parser.add_argument(
        "--fraction",
        type=fraction_or_estimated,
        help="share of the samples to flag, or `estimated`; default: flag scores above 0.5",
    )
    parser.add_argument("--out", type=Path, required=True, help="the table, .csv")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the table and print how many labels are flagged."""
    arguments = make_parser().parse_args(argv)
    out: Path = arguments.out
    if out.suffix.lower() != ".csv":
        raise InputError(f"--out: {out} is not a .csv file; give a name that ends in .csv")
    if out.is_dir() or (out.parent.is_dir() and not os.access(out.parent, os.W_OK)):
        raise InputError(f"--out: {out} cannot be written there; give a file in another folder")
    arrays = [_read(option, getattr(arguments, option)) for option in ("labels", "pred_probs", "features")]
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message="pred_probs: ")
        warnings.showwarning = _print_warning
        issues = find_issues(*arrays, scorer=arguments.scorer, fraction=arguments.fraction, progress=True)
    write_csv(out, protect_cells(_table(issues)))
    if issues.wrong_share is not None:
        print(f"--fraction estimated: {issues.wrong_share}")
    print(f"{out}: {issues}")
    return 0


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without the line of code."""
    print(f"warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)


def fraction_or_estimated(text: str) -> float | Literal["estimated"]:
    """Read the option `--fraction`."""
    try:
        return "estimated" if text == "estimated" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no number; give a share from 0 to 1, or estimated") from None


def _read(option: str, path: Path | None) -> Any:
    if path is None:
        return None
    key = f"--{option.replace('_', '-')}"
    try:
        return map_array(path)
    except FileNotFoundError:
        raise InputError(f"{key}: {path} does not exist; give a .npy file") from None
    except ObjectArrayError as error:
        converted = "labels.astype(str)" if option == "labels" else f"{option}.astype(float)"
        raise InputError(f"{key}: {path}: {error}; write it by numpy.save(file, {converted})") from None
    except ValueError as error:
        raise InputError(f"{key}: {path}: {error}; write it by numpy.save") from None


def _table(issues: LabelIssues) -> pa.Table:
    order = issues.ranked()
    columns = {"sample": np.arange(len(issues)), **issues.columns()}
    return pa.table({name: pa.array(values[order].tolist()) for name, values in columns.items()})
