"""What other rules would have saved in a search: replayed on the curves of its trials, nothing is trained.

Trials run side by side, so that a rule's course depends on the accuracies alone. Only trials whose whole curve is known
take part: those that ran to the end, and those that `resume_pruned` trained there later. For each rule: the epochs it
trains, the share it saves of all, and how far the accuracy of its winner, at the end, lies below the best one there.

    python -m benchmarks.elimination_rules data/tune/sgd/curves.csv data/tune/lamb/curves.csv
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.printing import Row, print_table
from pipeline.artifacts.files import read_json
from pipeline.artifacts.tables import read_csv
from pipeline.errors import InputError
from pipeline.stages.harness import exit_codes
from pipeline.tuning.halving import successive_halving
from pipeline.tuning.scheduler import (
    SearchOutcome,
    Tolerance,
    TrialStatus,
    TrialStep,
    run_halving,
    run_threshold_pruning,
)

_COLUMNS = {"trial": pa.int64(), "epoch": pa.int64(), "accuracy": pa.float64(), "afterwards": pa.bool_()}
_FACTORS = (2, 3)


def whole_curves(path: Path, epochs: int) -> NDArray[np.float64]:
    """(trials, epochs): the accuracies, 0 to 1, of the trials of a curves.csv that were trained for so many epochs.

    Raises:
        InputError: the file is missing or none of a search's, or fewer than two trials were.
    """
    curves: dict[int, dict[int, float]] = {}
    for row in read_csv(path, _COLUMNS).to_pylist():
        curves.setdefault(row["trial"], {})[row["epoch"]] = row["accuracy"]
    whole = [[curve[epoch] for epoch in sorted(curve)] for curve in curves.values() if len(curve) == epochs]
    if len(whole) < 2:
        raise InputError(
            f"{path}: {len(whole)} of {len(curves)} trials were trained for {epochs} epochs, which leaves no rule a "
            "choice; search with a larger `resume_pruned`"
        )
    return np.array(whole)


def epochs_of(path: Path) -> int:
    """That a trial of the search might take, from the summary.json beside its curves.csv.

    Raises:
        InputError: there is none.
    """
    summary = read_json(path.parent / "summary.json")
    return int(summary["epochs_allowed"] // summary["trials"])


def replayed(curves: NDArray[np.float64]) -> dict[str, SearchOutcome]:
    """Rule, in words -> what becomes of the trials under it."""
    trials, max_epochs = curves.shape

    def measure(turns: Sequence[TrialStep]) -> list[float | None]:
        return [float(curves[trial, epoch - 1]) for trial, epoch in turns]

    def ended(trial: int, how: TrialStatus) -> None:
        """Nothing is kept of it."""

    rules: dict[str, Callable[[], SearchOutcome]] = {
        f"{amount:.0%} {kind}": partial(
            run_threshold_pruning, measure, ended, trials=trials, max_epochs=max_epochs, max_concurrent=trials,
            tolerance=Tolerance(amount=amount, kind=kind),
        )
        for kind in ("absolute", "relative")
        for amount in (0.05, 0.1, 0.2)
    }  # fmt: skip
    for factor in _FACTORS:
        halvings = max(n for n in range(max_epochs) if factor**n <= min(trials, max_epochs))
        rungs = successive_halving(trials=trials, max_epochs=max_epochs, factor=factor, halvings=halvings)
        rules[f"successive halving by {factor}"] = partial(run_halving, measure, ended, brackets=[rungs])
    return {name: rule() for name, rule in rules.items()}


def rows_of(path: Path, epochs: int) -> list[Row]:
    """A row for each rule."""
    curves = whole_curves(path, epochs)
    at_end = curves[:, -1]
    rows: list[Row] = []
    for name, outcome in replayed(curves).items():
        assert outcome.winner is not None
        rows.append(
            {
                "search": path.parent.name,
                "trials": len(curves),
                "rule": name,
                "epochs": outcome.total_epochs,
                "saved_%": round(100 * (1 - outcome.total_epochs / curves.size)),
                "below_best_points": round(100 * float(at_end.max() - at_end[outcome.winner]), 1),
            }
        )
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="*", type=Path, help="(default: of all searches in --data)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of all artefacts")
    parser.add_argument("--epochs", type=int, help="of a trial at most (default: from summary.json beside each)")
    arguments = parser.parse_args()
    curves = arguments.curves or sorted(arguments.data.glob("tune/*/curves.csv"))
    if not curves:
        parser.error(f"no search in {arguments.data}/tune; run `python -m pipeline tune`, or name a curves.csv")
    print_table([row for path in curves for row in rows_of(path, arguments.epochs or epochs_of(path))])


if __name__ == "__main__":
    with exit_codes():
        main()
