"""What a search found, as tables and numbers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pyarrow as pa

from pipeline.config.tuning import Tuning
from pipeline.tuning.scheduler import SearchOutcome


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A search that has ended; the sequences have one entry for each trial.

    Attributes:
        values: of the keys searched.
        accuracies: on the judged rows (0 to 1) after each epoch of the search.
        reasons: why it failed, or empty.
        finished: trial -> its accuracies after all epochs, for the winner and those eliminated ones that were trained
            to the end all the same.
        failed_afterwards: trial -> why it failed on the way there.
        epochs_afterwards: that were trained on that way, those of trials that then failed too.
        switching: (epochs, 2), of each epoch that was trained the wall time in seconds, and which part of it went into
            taking the trial up and laying it down.
        n_val: images by which trials were judged.
        images: digest of all of them and their labels.
    """

    tuning: Tuning
    outcome: SearchOutcome
    values: Sequence[Mapping[str, Any]]
    accuracies: Sequence[Sequence[float]]
    reasons: Sequence[str]
    finished: Mapping[int, Sequence[float]]
    failed_afterwards: Mapping[int, str]
    epochs_afterwards: int
    switching: Sequence[tuple[float, float]]
    n_val: int
    images: str

    @property
    def ranking(self) -> list[int]:
        """The winner, those never eliminated, those that stayed longest, and the failed; of equals the best first."""
        outcome = self.outcome

        def place(trial: int) -> tuple[Any, ...]:
            eliminated, curve = outcome.eliminated_after[trial] is not None, self.accuracies[trial]
            last = curve[-1] if curve else 0.0
            return trial != outcome.winner, outcome.failed[trial], eliminated, -len(curve), -last, trial

        return sorted(range(len(self.values)), key=place)

    def status(self, trial: int) -> str:
        """winner, finished, eliminated or failed."""
        if trial == self.outcome.winner:
            return "winner"
        if self.outcome.failed[trial]:
            return "failed"
        return "finished" if self.outcome.eliminated_after[trial] is None else "eliminated"

    @property
    def _states(self) -> list[str]:
        return [self.status(trial) for trial in range(len(self.values))]

    @property
    def _looked_at(self) -> bool:
        """Whether any trial but the winner was trained to the end, or as far as it went, for the sake of its end."""
        return any(trial != self.outcome.winner for trial in (*self.finished, *self.failed_afterwards))

    @property
    def late_bloomers(self) -> list[int] | None:
        """Eliminated trials that, trained to the end, are better there than the winner.

        None where that is not known: no eliminated trial was held beside the winner at the last epoch, as
        `Tuning.finish` 0 asks for none, or the winner failed on its way there.
        """
        winner = self.outcome.winner
        if not self._looked_at and "eliminated" in self._states:
            return None
        if winner is None or winner in self.failed_afterwards:
            return None
        if winner not in self.finished:
            return []
        to_beat = self.finished[winner][-1]
        return sorted(trial for trial, curve in self.finished.items() if curve[-1] > to_beat)

    @property
    def accuracy_at_end(self) -> float | None:
        """The winner's, 0 to 1, after all epochs of a trial; None if it was not trained to them, or failed there."""
        assert self.outcome.winner is not None
        curve = self.finished.get(self.outcome.winner, self.accuracies[self.outcome.winner])
        return curve[-1] if len(curve) == self.tuning.epochs else None

    def leaderboard(self) -> pa.Table:
        """One row a trial: rank, trial, status, accuracy, epochs, eliminated_after, reason, and every key searched."""
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
        # As YAML would have them, so that a cell can be copied into a parameter file.
        keys = {key: [json.dumps(self.values[trial][key]) for trial in ranking] for key in self.tuning.space}
        return pa.table({**columns, **keys})

    def curves(self) -> pa.Table:
        """trial, epoch, accuracy, and whether the epoch was trained only afterwards, to count late bloomers."""
        rows = [
            {"trial": trial, "epoch": epoch, "accuracy": accuracy, "afterwards": epoch > len(curve)}
            for trial, curve in enumerate(self.accuracies)
            for epoch, accuracy in enumerate(self.finished.get(trial, curve), start=1)
        ]
        kinds = [("trial", pa.int64()), ("epoch", pa.int64()), ("accuracy", pa.float64()), ("afterwards", pa.bool_())]
        return pa.Table.from_pylist(rows, schema=pa.schema(kinds))

    def summary(self) -> dict[str, Any]:
        """The numbers of the search; accuracies are 0 to 1."""
        outcome, winner = self.outcome, self.outcome.winner
        assert winner is not None
        in_all = len(self.values) * self.tuning.epochs
        # What a failed trial did not train is no merit of the rule.
        lost = sum(
            self.tuning.epochs - done for done, failed in zip(outcome.epochs, outcome.failed, strict=True) if failed
        )
        saved = in_all - lost - outcome.total_epochs
        states = self._states
        return {
            "trials": len(self.values),
            "eliminated": states.count("eliminated"),
            "failed": states.count("failed"),
            "winner": {
                "trial": winner,
                "accuracy": self.accuracies[winner][-1],
                "epochs": outcome.epochs[winner],
                "accuracy_at_end": self.accuracy_at_end,
                "values": dict(self.values[winner]),
            },
            "epochs": outcome.total_epochs,
            "epochs_allowed": in_all,
            "epochs_lost": lost,
            "epochs_saved": saved,
            "saved_share": saved / in_all,
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
        """What it cost that trials train an epoch at a time; medians, as the first of a process starts libraries up."""
        return {
            "epochs": len(self.switching),
            "median_seconds": median(switch for _, switch in self.switching),
            "median_share": median(switch / seconds for seconds, switch in self.switching),
        }
