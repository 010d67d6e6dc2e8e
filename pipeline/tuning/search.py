"""Run a search from its first trial to its outcome. A resumed search repeats no finished epoch."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from pipeline.config.tuning import Tuning
from pipeline.errors import InputError
from pipeline.run_log import RunLog
from pipeline.training.checkpointing import Checkpoints
from pipeline.tuning.processes import train_next_epoch
from pipeline.tuning.scheduler import (
    Rung,
    SearchOutcome,
    Tolerance,
    TrialStatus,
    TrialStep,
    hyperband,
    run_halving,
    run_threshold_pruning,
    successive_halving,
)
from pipeline.tuning.sources import TrialData, write_mark
from pipeline.tuning.storage import StepResult, TrialSampler, TrialStorage, from_optuna_params, to_distributions
from pipeline.tuning.trial import TrainValRows, TrialRun
from pipeline.tuning.worker import EpochResult, EpochTask

EpochMapFn = Callable[[Callable[[EpochTask], EpochResult], Iterable[EpochTask]], Iterable[EpochResult]]
"""As the built-in `map`: results in the order of the tasks."""


class Search:
    """The trials of one search.

    Args:
        tuning: settings of the search.
        make_run: makes the run of a trial from its values; raises InputError if they do not fit together.
        rows: training and validation images.
        source: where training processes read the images.
        storage: the trials on disk.
        checkpoints: absolute folder of checkpoints, with one subfolder per trial.
        map_tasks: maps `train_next_epoch` over tasks, here or on workers.
        log: of the search.
    """

    def __init__(
        self,
        tuning: Tuning,
        *,
        make_run: Callable[[Mapping[str, Any]], TrialRun],
        rows: TrainValRows,
        source: TrialData,
        storage: TrialStorage,
        checkpoints: Path,
        map_tasks: EpochMapFn,
        log: RunLog,
    ) -> None:
        self._tuning, self._make_run, self._map, self._log = tuning, make_run, map_tasks, log
        self._rows, self._source, self._storage, self._checkpoints = rows, source, storage, checkpoints
        self._mark = write_mark(checkpoints)
        self._distributions, self._sampler = to_distributions(tuning.space), TrialSampler(tuning)
        self._runs: list[TrialRun | None] = []
        self.values: list[dict[str, Any]] = []
        """Values of each started trial."""
        self.accuracies: list[list[float]] = []
        """Accuracies of each started trial, 0 to 1, after each of its epochs; means over its seeds."""
        self.reasons: list[str] = []
        """Why each trial failed; empty if it did not."""
        self.failed_afterwards: dict[int, str] = {}
        """Trial -> why it failed in `resume_pruned`."""
        self.epochs_afterwards = 0
        """Number of epochs trained in `resume_pruned`, also of trials that then failed."""

    def run(self) -> SearchOutcome:
        """Run all trials under the pruning rule."""
        tuning, pruner, trials = self._tuning, self._tuning.pruner, count_trials(self._tuning)
        if pruner.name in ("hyperband", "successive_halving"):
            return run_halving(self._measure, self._on_trial_end, brackets=make_brackets(tuning))
        concurrent = 1 if tuning.scheduler == "sequential" else tuning.max_concurrent_trials or trials
        tolerance = Tolerance(amount=pruner.amount, kind=pruner.kind) if pruner.name == "threshold" else None
        return run_threshold_pruning(
            self._measure, self._on_trial_end, trials=trials, max_epochs=tuning.epochs, max_concurrent=concurrent,
            tolerance=tolerance,
        )  # fmt: skip

    def resume_pruned(self, trials: Sequence[int]) -> dict[int, list[float]]:
        """Train ended trials to their last epoch.

        Returns:
            trial -> its accuracies after all epochs, without trials that fail.
        """
        curves = {trial: list(self.accuracies[trial]) for trial in trials}
        while steps := [
            TrialStep(trial, len(curve) + 1) for trial, curve in curves.items() if len(curve) < self._tuning.epochs
        ]:
            for step, result in zip(steps, self._results(steps), strict=True):
                if result.accuracy is None:
                    del curves[step.trial]
                    self.failed_afterwards[step.trial] = result.reason
                else:
                    curves[step.trial].append(result.accuracy)
                    self.epochs_afterwards += 1
        return curves

    def _measure(self, steps: Sequence[TrialStep]) -> list[float | None]:
        for step in steps:
            if step.epoch == 1:
                self._start(step.trial)
        measured: list[float | None] = []
        for step, (accuracy, reason) in zip(steps, self._results(steps), strict=True):
            measured.append(accuracy)
            if accuracy is None:
                self.reasons[step.trial] = reason
            else:
                self.accuracies[step.trial].append(accuracy)
                self._sampler.report(step.trial, step.epoch, accuracy)
        best = max((accuracy for accuracy in measured if accuracy is not None), default=0.0)
        epochs = sorted({step.epoch for step in steps})
        epoch_text = f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
        self._log.info(f"epoch {epoch_text}: {len(steps)} trials, best accuracy {best:.4f}")
        return measured

    def _start(self, trial: int) -> None:
        params = self._sampler.ask()
        self._storage.start(trial, params, self._distributions)
        self.values.append(from_optuna_params(self._tuning.space, params))
        self.accuracies.append([])
        self.reasons.append("")
        try:
            self._runs.append(self._make_run(self.values[trial]))
        except InputError as error:
            self._runs.append(None)
            if self._storage.result(TrialStep(trial, 1)) is None:
                self._storage.add(TrialStep(trial, 1), StepResult(None, str(error)), seconds=0.0, switch_seconds=0.0)

    def _results(self, steps: Sequence[TrialStep]) -> list[StepResult]:
        """Return the results of `steps`, after training those that the storage lacks."""
        todo = [step for step in steps if self._storage.result(step) is None]
        for step, epoch in self._trained(todo):
            self._storage.add(
                step,
                StepResult(epoch.accuracy, epoch.reason),
                seconds=epoch.seconds,
                switch_seconds=epoch.switch_seconds,
            )
        results: list[StepResult] = []
        for step in steps:
            result = self._storage.result(step)
            assert result is not None
            if result.accuracy is None:
                self._log.info(f"trial {step.trial} failed in epoch {step.epoch}: {result.reason}")
            results.append(result)
        return results

    def _trained(self, steps: Sequence[TrialStep]) -> Iterator[tuple[TrialStep, EpochResult]]:
        """Yield `steps` with their results over all seeds; steps whose worker died come last."""
        seeds = range(self._tuning.seeds)
        trained = iter(self._map(train_next_epoch, (self._task(step, seed) for step in steps for seed in seeds)))
        killed = []
        for step in steps:
            epochs = list(itertools.islice(trained, len(seeds)))
            assert len(epochs) == len(seeds), "one result of each task"
            if any(epoch.killed for epoch in epochs):
                killed.append((step, epochs))
            else:
                yield step, _over_seeds(epochs)
        # A dying worker also loses the tasks in its queue. Retry each alone: one that dies alone is the cause.
        for step, epochs in killed:
            yield (
                step,
                _over_seeds([self._retried(step, seed) if epochs[seed].killed else epochs[seed] for seed in seeds]),
            )

    def _retried(self, step: TrialStep, seed: int) -> EpochResult:
        (epoch,) = self._map(train_next_epoch, [self._task(step, seed)])
        return epoch

    def _task(self, step: TrialStep, seed: int) -> EpochTask:
        """Return the task of a step; `seed` counts those of the trial."""
        run = self._runs[step.trial]
        assert run is not None, "a trial without a run has failed"
        if seed > 0:
            run = replace(run, settings=replace(run.settings, seed=run.seeds[seed]))
        folder = self._folder(step.trial, seed)
        return EpochTask(
            run=run, epoch=step.epoch, rows=self._rows, source=self._source, folder=folder, mark=self._mark
        )

    def _folder(self, trial: int, seed: int) -> Path:
        return self._checkpoints / (f"{trial:04d}-{seed}" if seed else f"{trial:04d}")

    def _on_trial_end(self, trial: int, status: TrialStatus) -> None:
        last = self.accuracies[trial][-1] if self.accuracies[trial] else None
        self._storage.end(trial, status, last)
        if status == "failed" or (status == "eliminated" and not self._tuning.resume_pruned):
            for seed in range(self._tuning.seeds):
                Checkpoints(self._folder(trial, seed)).clear()
        self._sampler.tell(trial, status, last)


def _over_seeds(epochs: Sequence[EpochResult]) -> EpochResult:
    """Return the mean accuracy over the seeds of a trial, and their seconds together; None if a seed failed."""
    if len(epochs) == 1:
        return epochs[0]
    failed = next((epoch for epoch in epochs if epoch.accuracy is None), None)
    accuracies = [epoch.accuracy for epoch in epochs if epoch.accuracy is not None]
    return EpochResult(
        accuracy=None if failed else fmean(accuracies),
        reason=failed.reason if failed else "",
        seconds=sum(epoch.seconds for epoch in epochs),
        switch_seconds=sum(epoch.switch_seconds for epoch in epochs),
    )


def count_trials(tuning: Tuning) -> int:
    """Return the number of trials of the whole search.

    Raises:
        InputError: the grid has fewer points than hyperband has trials, or too few trials end for TPE to learn.
    """
    size = math.prod(domain.size for domain in tuning.space.values())
    if tuning.pruner.name != "hyperband":
        return tuning.trials or int(size)
    started = [bracket[0].trials for bracket in make_brackets(tuning)]
    trials, ended = sum(started), sum(started[:-1])
    if tuning.sampler.name == "grid" and trials > size:
        raise InputError(
            f"sampler: hyperband of {tuning.epochs} epochs has {trials} trials, but the grid has {size:g} points; "
            "add values, or use a larger factor or another sampler"
        )
    if tuning.sampler.name == "tpe" and ended < tuning.sampler.n_startup_trials:
        raise InputError(
            f"sampler: tpe learns once {tuning.sampler.n_startup_trials} trials have ended, but only {ended} have when "
            f"the last bracket of hyperband of {tuning.epochs} epochs starts; use fewer n_startup_trials, more epochs, "
            "or the sampler random"
        )
    return trials


def make_brackets(tuning: Tuning) -> list[list[Rung]]:
    """Return the brackets of Hyperband, or the bracket of successive halving."""
    pruner = tuning.pruner
    if pruner.name == "hyperband":
        return hyperband(max_epochs=tuning.epochs, factor=pruner.factor)
    assert pruner.name == "successive_halving", pruner.name
    trials, halvings = count_trials(tuning), 0
    while pruner.factor ** (halvings + 1) <= min(trials, tuning.epochs):
        halvings += 1
    return [successive_halving(trials=trials, max_epochs=tuning.epochs, factor=pruner.factor, halvings=halvings)]


def trials_to_resume(tuning: Tuning, outcome: SearchOutcome, *, compared: bool = False) -> list[int]:
    """Return the trials to train to their last epoch: their curves count the late bloomers that the rule dropped.

    These are the winner, the pruned trials that ran all epochs, and at most `tuning.resume_pruned` other pruned
    trials, sampled with the search's seed. The list is empty if it would train more than requested, or if no trial
    would remain to compare.

    Args:
        tuning: settings of the search.
        outcome: with a winner.
        compared: the winner is compared with other searches, so it trains to its last epoch in any case.
    """
    assert outcome.winner is not None
    pruned = [trial for trial, after in enumerate(outcome.eliminated_after) if after is not None]
    complete = [trial for trial in pruned if outcome.epochs[trial] == tuning.epochs]
    others = [trial for trial in pruned if outcome.epochs[trial] < tuning.epochs]
    # A larger number includes the sample of a smaller one.
    sample = np.random.default_rng(tuning.seed).permutation(others)[: tuning.resume_pruned].tolist()
    dropped = sorted([*complete, *sample])
    to_end = bool(tuning.resume_pruned) or outcome.epochs[outcome.winner] == tuning.epochs
    return [outcome.winner, *dropped] if compared or (dropped and to_end) else []
