"""A search from its first trial to its outcome; what an earlier, interrupted process found out is not done again."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.tuning import Tuning
from pipeline.errors import InputError
from pipeline.run_log import RunLog
from pipeline.training.checkpointing import Checkpoints
from pipeline.tuning.halving import Rung, hyperband, successive_halving
from pipeline.tuning.processes import train_next_epoch
from pipeline.tuning.scheduler import (
    SearchOutcome,
    Tolerance,
    TrialStatus,
    TrialStep,
    run_halving,
    run_threshold_pruning,
)
from pipeline.tuning.sources import TrialData, write_mark
from pipeline.tuning.storage import StepResult, TrialSampler, TrialStorage, from_optuna_params, to_distributions
from pipeline.tuning.trial import TrainValRows, TrialRun
from pipeline.tuning.worker import EpochResult, EpochTask

EpochMapFn = Callable[[Callable[[EpochTask], EpochResult], Iterable[EpochTask]], Iterable[EpochResult]]
"""As the built-in one: results in the order of the tasks."""


class Search:
    """The trials of one search.

    Args:
        run_of: from a trial's values to its run; raises InputError where they do not fit together.
        map_tasks: where epochs are trained.
        checkpoints: folder of the trials' states, one folder each; absolute.
    """

    def __init__(
        self,
        tuning: Tuning,
        *,
        run_of: Callable[[Mapping[str, Any]], TrialRun],
        rows: TrainValRows,
        source: TrialData,
        journal: TrialStorage,
        checkpoints: Path,
        map_tasks: EpochMapFn,
        log: RunLog,
    ) -> None:
        self._tuning, self._run_of, self._map, self._log = tuning, run_of, map_tasks, log
        self._rows, self._source, self._journal, self._checkpoints = rows, source, journal, checkpoints
        self._mark = write_mark(checkpoints)
        self._distributions, self._suggestions = to_distributions(tuning.space), TrialSampler(tuning)
        self._runs: list[TrialRun | None] = []
        self.values: list[dict[str, Any]] = []
        """Of each trial that has started."""
        self.accuracies: list[list[float]] = []
        """Of each of them, after each of its epochs."""
        self.reasons: list[str] = []
        """Why a trial failed, or empty."""
        self.failed_afterwards: dict[int, str] = {}
        """Trial -> why it failed in `resume_pruned`, after it had ended."""
        self.epochs_afterwards = 0
        """Trained in `resume_pruned`, those of trials that then failed too."""

    def run(self) -> SearchOutcome:
        """Take the course of the rule to its end."""
        tuning, rule, trials = self._tuning, self._tuning.pruner, number_of_trials(self._tuning)
        if rule.name in ("hyperband", "successive_halving"):
            return run_halving(self._measure, self._ended, brackets=make_brackets(tuning))
        places = 1 if tuning.scheduler == "sequential" else tuning.max_concurrent_trials or trials
        tolerance = Tolerance(amount=rule.amount, kind=rule.kind) if rule.name == "threshold" else None
        return run_threshold_pruning(
            self._measure, self._ended, trials=trials, cap=tuning.epochs, places=places, tolerance=tolerance
        )  # fmt: skip

    def finish(self, trials: Sequence[int]) -> dict[int, list[float]]:
        """Train trials that have ended to their last epoch; those that fail are left out.

        Returns:
            trial -> its accuracies after all epochs.
        """
        curves = {trial: list(self.accuracies[trial]) for trial in trials}
        while turns := [
            TrialStep(trial, len(curve) + 1) for trial, curve in curves.items() if len(curve) < self._tuning.epochs
        ]:
            for turn, result in zip(turns, self._results(turns), strict=True):
                if result.accuracy is None:
                    del curves[turn.trial]
                    self.failed_afterwards[turn.trial] = result.reason
                else:
                    curves[turn.trial].append(result.accuracy)
                    self.epochs_afterwards += 1
        return curves

    def _measure(self, turns: Sequence[TrialStep]) -> list[float | None]:
        for turn in turns:
            if turn.epoch == 1:
                self._start(turn.trial)
        measured: list[float | None] = []
        for turn, (accuracy, reason) in zip(turns, self._results(turns), strict=True):
            measured.append(accuracy)
            if accuracy is None:
                self.reasons[turn.trial] = reason
            else:
                self.accuracies[turn.trial].append(accuracy)
                self._suggestions.report(turn.trial, turn.epoch, accuracy)
        best = max((accuracy for accuracy in measured if accuracy is not None), default=0.0)
        epochs = sorted({turn.epoch for turn in turns})
        shown = f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
        self._log.info(f"epoch {shown}: {len(turns)} trials, best accuracy {best:.4f}")
        return measured

    def _start(self, trial: int) -> None:
        drawn = self._suggestions.ask()
        self._journal.start(trial, drawn, self._distributions)
        self.values.append(from_optuna_params(self._tuning.space, drawn))
        self.accuracies.append([])
        self.reasons.append("")
        try:
            self._runs.append(self._run_of(self.values[trial]))
        except InputError as error:
            self._runs.append(None)
            if self._journal.result(TrialStep(trial, 1)) is None:
                self._journal.add(TrialStep(trial, 1), StepResult(None, str(error)), seconds=0.0, switch_seconds=0.0)

    def _results(self, turns: Sequence[TrialStep]) -> list[StepResult]:
        """Of `turns`, trained where the journal has none."""
        todo = [turn for turn in turns if self._journal.result(turn) is None]
        for turn, epoch in self._trained(todo):
            self._journal.add(
                turn,
                StepResult(epoch.accuracy, epoch.reason),
                seconds=epoch.seconds,
                switch_seconds=epoch.switch_seconds,
            )
        found: list[StepResult] = []
        for turn in turns:
            result = self._journal.result(turn)
            assert result is not None
            if result.accuracy is None:
                self._log.info(f"trial {turn.trial} failed in epoch {turn.epoch}: {result.reason}")
            found.append(result)
        return found

    def _trained(self, turns: Sequence[TrialStep]) -> Iterator[tuple[TrialStep, EpochResult]]:
        """`turns` with their results, those last whose worker died."""
        killed = []
        for turn, epoch in zip(turns, self._map(train_next_epoch, map(self._task, turns)), strict=True):
            if epoch.killed:
                killed.append(turn)
            else:
                yield turn, epoch
        # A dying worker takes those along that wait for it. Who dies alone is to blame.
        for turn in killed:
            (epoch,) = self._map(train_next_epoch, [self._task(turn)])
            yield turn, epoch

    def _task(self, turn: TrialStep) -> EpochTask:
        run = self._runs[turn.trial]
        assert run is not None, "a trial without a run has failed"
        folder = self._checkpoints / f"{turn.trial:04d}"
        return EpochTask(
            run=run, epoch=turn.epoch, rows=self._rows, source=self._source, folder=folder, mark=self._mark
        )

    def _ended(self, trial: int, how: TrialStatus) -> None:
        last = self.accuracies[trial][-1] if self.accuracies[trial] else None
        self._journal.end(trial, how, last)
        if how == "failed" or (how == "eliminated" and not self._tuning.resume_pruned):
            Checkpoints(self._checkpoints / f"{trial:04d}").clear()
        self._suggestions.end(trial, how, last)


def number_of_trials(tuning: Tuning) -> int:
    """Of the whole search.

    Raises:
        InputError: the grid has fewer points than hyperband has trials, or TPE could learn from none of them.
    """
    size = math.prod(domain.size for domain in tuning.space.values())
    if tuning.pruner.name != "hyperband":
        return tuning.trials or int(size)
    started = [bracket[0].trials for bracket in make_brackets(tuning)]
    trials, ended = sum(started), sum(started[:-1])
    if tuning.sampler.name == "grid" and trials > size:
        raise InputError(
            f"sampler: hyperband of {tuning.epochs} epochs has {trials} trials, but the grid has {size:g} points; "
            "add values, take a larger factor, or another sampler"
        )
    if tuning.sampler.name == "tpe" and ended < tuning.sampler.n_startup_trials:
        raise InputError(
            f"sampler: tpe learns from {tuning.sampler.n_startup_trials} ended trials, and when the last bracket of "
            f"hyperband of {tuning.epochs} epochs starts, {ended} have; give fewer n_startup_trials or more epochs, or "
            "take random"
        )
    return trials


def make_brackets(tuning: Tuning) -> list[list[Rung]]:
    """The schedule of a rule that halves."""
    rule = tuning.pruner
    if rule.name == "hyperband":
        return hyperband(cap=tuning.epochs, factor=rule.factor)
    assert rule.name == "successive_halving", rule.name
    trials, halvings = number_of_trials(tuning), 0
    while rule.factor ** (halvings + 1) <= min(trials, tuning.epochs):
        halvings += 1
    return [successive_halving(trials=trials, cap=tuning.epochs, factor=rule.factor, halvings=halvings)]


def trials_to_resume(tuning: Tuning, outcome: SearchOutcome, *, compared: bool = False) -> list[int]:
    """Whose whole curves tell how many late bloomers the rule dropped: the winner's and those of eliminated trials.

    Of these, all that ran to the cap before they were pruned, and at most `tuning.resume_pruned` others, sampled by
    the search's seed. Nobody, where that would mean training that was not asked for, or leave nobody to compare.

    Args:
        compared: the winner is, with those of other searches, for which it is trained to the end in any case.
    """
    assert outcome.winner is not None
    eliminated = [trial for trial, after in enumerate(outcome.eliminated_after) if after is not None]
    whole = [trial for trial in eliminated if outcome.epochs[trial] == tuning.epochs]
    others = [trial for trial in eliminated if outcome.epochs[trial] < tuning.epochs]
    # With a larger number those of a smaller one are drawn again.
    drawn = np.random.default_rng(tuning.seed).permutation(others)[: tuning.resume_pruned].tolist()
    dropped = sorted([*whole, *drawn])
    to_end = bool(tuning.resume_pruned) or outcome.epochs[outcome.winner] == tuning.epochs
    return [outcome.winner, *dropped] if compared or (dropped and to_end) else []
