"""Replay other pruning rules on the curves of a search, without training, and print what each would have saved.

All trials run at the same time, so that a rule's decisions depend on the accuracies alone. Only trials with complete
curves take part: those that ran to the end, and those that `resume_pruned` trained to the end later. Each row gives the
epochs that a rule trains, the share it saves, and by how much the final accuracy of its winner is below the best one.

    python -m benchmarks.pruning_rules data/tune/sgd/curves.csv data/tune/lamb/curves.csv
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
from pipeline.tuning.scheduler import (
    SearchOutcome,
    Tolerance,
    TrialStatus,
    TrialStep,
    run_halving,
    run_threshold_pruning,
    successive_halving,
)

_COLUMNS = {"trial": pa.int64(), "epoch": pa.int64(), "accuracy": pa.float64(), "afterwards": pa.bool_()}
_FACTORS = (2, 3)


def complete_curves(path: Path, epochs: int) -> NDArray[np.float64]:
    """Return the accuracies (trials, epochs), 0 to 1, of the trials in a curves.csv that trained for `epochs` epochs.

    Raises:
        InputError: the file is missing or is not the curves.csv of a search, or fewer than two trials are complete.
    """
    curves: dict[int, dict[int, float]] = {}
    for row in read_csv(path, _COLUMNS).to_pylist():
        curves.setdefault(row["trial"], {})[row["epoch"]] = row["accuracy"]
    complete = [[curve[epoch] for epoch in sorted(curve)] for curve in curves.values() if len(curve) == epochs]
    if len(complete) < 2:
        raise InputError(
            f"{path}: {len(complete)} of {len(curves)} trials were trained for {epochs} epochs; a rule needs two to "
            "choose from: search with a larger `resume_pruned`"
        )
    return np.array(complete)


def epochs_per_trial(path: Path) -> int:
    """Return the maximum number of epochs of a trial, from summary.json in the folder of a curves.csv.

    Raises:
        InputError: summary.json is missing.
    """
    summary = read_json(path.parent / "summary.json")
    return int(summary["epochs_allowed"] // summary["trials"])


def replay_rules(curves: NDArray[np.float64]) -> dict[str, SearchOutcome]:
    """Return the outcome of the trials under each rule, by the name of the rule; curves (trials, epochs)."""
    trials, max_epochs = curves.shape

    def measure(steps: Sequence[TrialStep]) -> list[float | None]:
        return [float(curves[trial, epoch - 1]) for trial, epoch in steps]

    def ended(trial: int, how: TrialStatus) -> None:
        """Nothing to clean up: no trial has files."""

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
    """Return a row for each rule."""
    curves = complete_curves(path, epochs)
    at_end = curves[:, -1]
    rows: list[Row] = []
    for name, outcome in replay_rules(curves).items():
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
    parser.add_argument("curves", nargs="*", type=Path, help="files curves.csv (default: of all searches in --data)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of all artifacts")
    parser.add_argument("--epochs", type=int, help="maximum per trial (default: from summary.json in the same folder)")
    arguments = parser.parse_args()
    curves = arguments.curves or sorted(arguments.data.glob("tune/*/curves.csv"))
    if not curves:
        parser.error(f"no search in {arguments.data}/tune: run `python -m pipeline tune`, or give a curves.csv")
    print_table([row for path in curves for row in rows_of(path, arguments.epochs or epochs_per_trial(path))])


if __name__ == "__main__":
    with exit_codes():
        main()
