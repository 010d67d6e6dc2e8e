"""Results of a search, as tables and numbers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from pipeline.config.tuning import Tuning
from pipeline.tuning.scheduler import SearchOutcome


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A finished search. The sequences have one entry per trial.

    Attributes:
        tuning: settings of the search.
        outcome: of the trials.
        values: of the searched keys.
        accuracies: on the validation rows (0 to 1) after each epoch of the search.
        reasons: why the trial failed; empty if it did not.
        finished: trial -> its accuracies after all epochs, for the winner and for pruned trials that were trained
            to the end afterwards.
        failed_afterwards: trial -> why it failed in that training.
        epochs_afterwards: number of epochs of that training, also of trials that then failed.
        epoch_times: (epochs, 2), wall time in seconds of each trained epoch, and the part of it that restored and saved
            the trial.
        n_val: number of validation images.
        images: digest of all images and their labels.
        journal: file of the trials, in Optuna's journal format.
    """

    tuning: Tuning
    outcome: SearchOutcome
    values: Sequence[Mapping[str, Any]]
    accuracies: Sequence[Sequence[float]]
    reasons: Sequence[str]
    finished: Mapping[int, Sequence[float]]
    failed_afterwards: Mapping[int, str]
    epochs_afterwards: int
    epoch_times: Sequence[tuple[float, float]]
    n_val: int
    images: str
    journal: Path

    @property
    def ranking(self) -> list[int]:
        """Trials by rank: winner, never pruned, longest active, failed; of equals the best first."""
        outcome = self.outcome

        def sort_key(trial: int) -> tuple[Any, ...]:
            pruned, curve = outcome.eliminated_after[trial] is not None, self.accuracies[trial]
            last = curve[-1] if curve else 0.0
            return trial != outcome.winner, outcome.failed[trial], pruned, -len(curve), -last, trial

        return sorted(range(len(self.values)), key=sort_key)

    def status(self, trial: int) -> str:
        """Return winner, finished, eliminated (pruned) or failed."""
        if trial == self.outcome.winner:
            return "winner"
        if self.outcome.failed[trial]:
            return "failed"
        return "finished" if self.outcome.eliminated_after[trial] is None else "eliminated"

    @property
    def _statuses(self) -> list[str]:
        return [self.status(trial) for trial in range(len(self.values))]

    @property
    def _any_resumed(self) -> bool:
        """Whether a trial other than the winner was trained to the end afterwards, or failed in that training."""
        return any(trial != self.outcome.winner for trial in (*self.finished, *self.failed_afterwards))

    @property
    def late_bloomers(self) -> list[int] | None:
        """Pruned trials that, trained to the end, beat the winner.

        None if unknown: no pruned trial was trained to the end, as with `Tuning.resume_pruned` 0, or the
        winner failed before its last epoch.
        """
        winner = self.outcome.winner
        if not self._any_resumed and "eliminated" in self._statuses:
            return None
        if winner is None or winner in self.failed_afterwards:
            return None
        if winner not in self.finished:
            return []
        to_beat = self.finished[winner][-1]
        return sorted(trial for trial, curve in self.finished.items() if curve[-1] > to_beat)

    @property
    def accuracy_at_end(self) -> float | None:
        """Accuracy of the winner, 0 to 1, after all epochs; None if it was not trained to the end, or failed."""
        assert self.outcome.winner is not None
        curve = self.finished.get(self.outcome.winner, self.accuracies[self.outcome.winner])
        return curve[-1] if len(curve) == self.tuning.epochs else None

    def leaderboard(self) -> pa.Table:
        """Return a row per trial: rank, trial, status, accuracy, epochs, eliminated_after, reason, searched keys."""
        ranking, outcome = self.ranking, self.outcome
        last = [curve[-1] if curve else None for curve in self.accuracies]
        columns: dict[str, Any] = {
            "rank": pa.array(range(1, len(ranking) + 1), pa.int64()),
            "trial": pa.array(ranking, pa.int64()),
            "status": [self.status(trial) for trial in ranking],
            "accuracy": pa.array([last[trial] for trial in ranking], pa.float64()),
            "epochs": pa.array([outcome.epochs[trial] for trial in ranking], pa.int64()),
            "eliminated_after": pa.array([outcome.eliminated_after[trial] for trial in ranking], pa.int64()),
            "reason": [self.reasons[trial] for trial in ranking],
        }  # fmt: skip
        # JSON is valid YAML, so a cell can be copied into a parameter file.
        keys = {key: [json.dumps(self.values[trial][key]) for trial in ranking] for key in self.tuning.space}
        return pa.table({**columns, **keys})

    def curves(self) -> pa.Table:
        """Return a row per epoch: trial, epoch, accuracy, and afterwards: trained later to count late bloomers."""
        rows = [
            {"trial": trial, "epoch": epoch, "accuracy": accuracy, "afterwards": epoch > len(curve)}
            for trial, curve in enumerate(self.accuracies)
            for epoch, accuracy in enumerate(self.finished.get(trial, curve), start=1)
        ]
        kinds = [("trial", pa.int64()), ("epoch", pa.int64()), ("accuracy", pa.float64()), ("afterwards", pa.bool_())]
        return pa.Table.from_pylist(rows, schema=pa.schema(kinds))

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the search; accuracies are 0 to 1."""
        outcome, winner = self.outcome, self.outcome.winner
        assert winner is not None
        n_allowed = len(self.values) * self.tuning.epochs
        # The rule did not save the epochs that failed trials did not reach.
        lost = sum(
            self.tuning.epochs - done for done, failed in zip(outcome.epochs, outcome.failed, strict=True) if failed
        )
        saved = n_allowed - lost - outcome.total_epochs
        statuses = self._statuses
        return {
            "trials": len(self.values),
            "eliminated": statuses.count("eliminated"),
            "failed": statuses.count("failed"),
            "winner": {
                "trial": winner,
                "accuracy": self.accuracies[winner][-1],
                "epochs": outcome.epochs[winner],
                "accuracy_at_end": self.accuracy_at_end,
                "values": dict(self.values[winner]),
            },
            "epochs": outcome.total_epochs,
            "epochs_allowed": n_allowed,
            "epochs_lost": lost,
            "epochs_saved": saved,
            "saved_share": saved / n_allowed,
            "epochs_afterwards": self.epochs_afterwards,
            "finished_afterwards": sorted(trial for trial in self.finished if trial != winner),
            "late_bloomers": self.late_bloomers,
            "failed_afterwards": [
                {"trial": trial, "reason": reason} for trial, reason in sorted(self.failed_afterwards.items())
            ],
            "context_switch": self.context_switch,
        }

    @property
    def context_switch(self) -> dict[str, Any]:
        """Cost of training trials one epoch at a time; medians, since a process starts libraries in its first epoch."""
        return {
            "epochs": len(self.epoch_times),
            "median_seconds": median(switch for _, switch in self.epoch_times),
            "median_share": median(switch / seconds for seconds, switch in self.epoch_times),
        }
