"""Schedule of a search: which trials train next, and which are pruned.

All active trials finish an epoch before any are compared. So the outcome does not depend on their speed or on the order
of their results, and a resumed search has the same outcome. Hyperband runs successive halving several times, from many
trials stopped early to few that all run to the end. How early a good trial stands out is unknown (Li et al. 2018, JMLR
18(185), algorithm 1).
"""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Accuracies are decimal fractions: 0.9 - 0.8 and 0.8 - 0.7 count as equal despite floating-point rounding.
_ROUNDING = 1e-9

TrialStatus = Literal["finished", "eliminated", "failed"]

TrialEndCallback = Callable[[int, TrialStatus], None]
"""Receives each trial that ended, before the next steps start."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A step of a bracket: `trials` trials train until each has run `epochs` epochs in total."""

    trials: int
    epochs: int


def successive_halving(*, trials: int, max_epochs: int, factor: int, halvings: int) -> list[Rung]:
    """Return the rungs. After each, the best of every `factor` trials continue to `factor` times the epochs.

    Rung i has floor(trials / factor^i) trials and floor(max_epochs / factor^(halvings - i)) epochs.

    Args:
        trials: of the first rung, >= factor^halvings, so that one remains.
        max_epochs: epochs of the last rung, >= factor^halvings, so that the first has one.
        factor: >= 2, the eta of the paper.
        halvings: number of times that trials are dropped, >= 0.
    """
    assert factor >= 2, factor
    assert halvings >= 0, halvings
    assert min(trials, max_epochs) >= factor**halvings, (trials, max_epochs, factor, halvings)
    return [
        Rung(trials=trials // factor**i, epochs=max_epochs // factor ** (halvings - i)) for i in range(halvings + 1)
    ]


def hyperband(*, max_epochs: int, factor: int) -> list[list[Rung]]:
    """Return the brackets, from the one with most halvings to the one with none.

    With s_max = floor(log_factor(max_epochs)), the bracket of s halvings starts ceil((s_max + 1) factor^s / (s + 1))
    trials, so that all brackets cost about the same. Epochs are rounded down where `max_epochs` is no power of
    `factor`.

    Args:
        max_epochs: of a trial, >= 1; the R of the paper.
        factor: >= 2; the eta of the paper.
    """
    assert max_epochs >= 1, max_epochs
    assert factor >= 2, factor
    s_max = 0
    while factor ** (s_max + 1) <= max_epochs:
        s_max += 1
    return [
        successive_halving(
            trials=-(-(s_max + 1) * factor**halvings // (halvings + 1)),
            max_epochs=max_epochs,
            factor=factor,
            halvings=halvings,
        )
        for halvings in range(s_max, -1, -1)
    ]


def promoted(accuracies: ArrayLike, keep: int) -> list[int]:
    """Return the `keep` best trials of a rung, ascending; of equals the first.

    Args:
        accuracies: (n_trials,) after the epochs of the rung.
        keep: 1 to n_trials.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    assert 1 <= keep <= len(values), (keep, len(values))
    assert np.isfinite(values).all()
    return sorted(np.argsort(-values, kind="stable")[:keep].tolist())


class TrialStep(NamedTuple):
    """Next step of a search: `trial`, from 0, trains its `epoch`, from 1."""

    trial: int
    epoch: int


Measure = Callable[[Sequence[TrialStep]], Sequence[float | None]]
"""Trains the steps; returns accuracies (0 to 1) in the same order, or None for a trial that failed or diverged."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far below the best accuracy a trial may lie without being pruned.

    Attributes:
        amount: in [0, 1): an accuracy if absolute, a fraction of the best accuracy if relative.
        kind: at a best accuracy of 0.5, an amount of 0.1 keeps 0.40 and above if absolute, 0.45 if relative.
    """

    amount: float
    kind: Literal["absolute", "relative"]

    def __post_init__(self) -> None:
        assert 0 <= self.amount < 1, self.amount


def survivors(accuracies: ArrayLike, tolerance: Tolerance) -> NDArray[np.bool_]:
    """Return which trials stay after an epoch that all of them finished; the best always does (Rand 2021).

    Args:
        accuracies: (n_trials,) of active trials, each 0 to 1.
        tolerance: how far below the best a trial may lie.

    Returns:
        bool (n_trials,).
    """
    values = np.asarray(accuracies, dtype=np.float64)
    assert values.ndim == 1, values.shape
    assert values.size > 0
    assert ((values >= 0) & (values <= 1)).all(), "an accuracy lies outside 0 to 1"
    best = values.max()
    allowed = tolerance.amount * (best if tolerance.kind == "relative" else 1.0)
    stay: NDArray[np.bool_] = best - values <= allowed + _ROUNDING
    return stay


@dataclass(frozen=True, kw_only=True)
class SearchOutcome:
    """Outcome of a search. The sequences have one entry per trial.

    Attributes:
        winner: the trial with the best last accuracy of those that neither failed nor were pruned, the first of
            equals. None exactly if all failed.
        epochs: number of finished epochs. An epoch in which the trial failed does not count.
        eliminated_after: the epoch whose comparison pruned the trial. None if never pruned, or if all trials that were
            ahead of it failed later: it can win, but does not resume. In a sequential search a trial can have run for
            longer than this epoch.
        failed: whether the trial failed or diverged.
    """

    winner: int | None
    epochs: tuple[int, ...]
    eliminated_after: tuple[int | None, ...]
    failed: tuple[bool, ...]

    @property
    def total_epochs(self) -> int:
        """Number of finished epochs of all trials."""
        return sum(self.epochs)


def run_threshold_pruning(
    measure: Measure,
    on_trial_end: TrialEndCallback,
    *,
    trials: int,
    max_epochs: int,
    max_concurrent: int,
    tolerance: Tolerance | None,
) -> SearchOutcome:
    """After each epoch prune every trial too far below the best at that epoch, and start the next trials.

    A trial is compared with all active trials that have reached its epoch. With `max_concurrent` = `trials`, all run
    concurrently. With 1 they run one after another, and a later trial can prune an earlier, finished one. A trial
    stops when no other is active or waiting. The rule is that of Rand (2021), who does not define failures:
    here a comparison that only failed trials won is void.

    Args:
        measure: trains steps.
        on_trial_end: receives each trial that ended.
        trials: number of trials, >= 1.
        max_epochs: of a trial, >= 1.
        max_concurrent: number of trials that run at a time, >= 1.
        tolerance: of the rule; with None no trial is pruned.
    """
    assert min(trials, max_epochs, max_concurrent) >= 1, (trials, max_epochs, max_concurrent)
    state, waiting = _SearchState(trials, measure, on_trial_end), list(range(trials))
    while True:
        while waiting and len(state.running) < max_concurrent:
            state.start(waiting.pop(0))
        if not state.running:
            return state.outcome()
        state.advance()
        if tolerance is not None:
            _prune(state, tolerance)
            if not waiting and len(state.active) == 1:
                state.stop()
        state.finish(max_epochs)


def run_halving(
    measure: Measure, on_trial_end: TrialEndCallback, *, brackets: Sequence[Sequence[Rung]]
) -> SearchOutcome:
    """Run successive halving in each bracket, one bracket after another.

    If all trials that a rung promoted over a trial fail later, that trial can still win.

    Args:
        measure: trains steps.
        on_trial_end: receives each trial that ended.
        brackets: from `hyperband`, or one from `successive_halving`. Trials are numbered through the brackets.
    """
    state = _SearchState(sum(bracket[0].trials for bracket in brackets), measure, on_trial_end)
    first = 0
    for bracket in brackets:
        for trial in range(first, first + bracket[0].trials):
            state.start(trial)
        for index, rung in enumerate(bracket):
            while state.running and state.n_epochs(state.running[0]) < rung.epochs:
                state.advance()
            if state.running and index + 1 < len(bracket):
                best = promoted(
                    [state.accuracies[trial][-1] for trial in state.running],
                    min(bracket[index + 1].trials, len(state.running)),
                )
                stay = [state.running[position] for position in best]
                pruned = [trial for trial in state.running if trial not in stay]
                state.prune(dict.fromkeys(pruned, stay), rung.epochs)
        state.finish(bracket[-1].epochs)
        first += bracket[0].trials
    return state.outcome()


class _SearchState:
    """State of all trials. `active` holds those not pruned and not failed, ascending, running or finished.

    A pruned trial takes part in no comparison: otherwise it could prune, at a later epoch, the trial that beat it, and
    no trial would remain. A failed trial does not count either, not even for earlier epochs: trials that only failed
    ones pruned are active again. So at least one trial is active unless all fail: a trial that has not failed was ahead
    of every pruned one, then or later, and the last of these is active.
    """

    def __init__(self, trials: int, measure: Measure, on_trial_end: TrialEndCallback) -> None:
        self.trials, self.measure, self.on_trial_end = trials, measure, on_trial_end
        self.active: list[int] = []
        self.running: list[int] = []
        self.accuracies: list[list[float]] = [[] for _ in range(trials)]
        self.pruned: list[int | None] = [None] * trials
        self.ahead: dict[int, Sequence[int]] = {}
        self.failed = [False] * trials

    def start(self, trial: int) -> None:
        """Start a trial."""
        self.active.append(trial)
        self.running.append(trial)

    def n_epochs(self, trial: int) -> int:
        """Return the number of epochs that a trial has finished."""
        return len(self.accuracies[trial])

    def advance(self) -> None:
        """Train one epoch of all running trials. Remove failed trials, and undo the pruning that they alone decided."""
        steps = [TrialStep(trial, self.n_epochs(trial) + 1) for trial in self.running]
        for (trial, _), accuracy in zip(steps, self.measure(steps), strict=True):
            if accuracy is None:
                self.failed[trial] = True
                self._remove(trial, "failed")
            else:
                self.accuracies[trial].append(accuracy)
        for trial, others in list(self.ahead.items()):
            if all(self.failed[other] for other in others):
                del self.ahead[trial]
                self.pruned[trial] = None
                insort(self.active, trial)

    def prune(self, ahead: Mapping[int, Sequence[int]], epoch: int) -> None:
        """Prune the keys of `ahead`; the values are the trials that were ahead of them at `epoch`."""
        for trial, others in ahead.items():
            self.ahead[trial], self.pruned[trial] = others, epoch
            self._remove(trial, "eliminated")

    def finish(self, max_epochs: int) -> None:
        """Stop trials that have run all their epochs. They stay active."""
        for trial in [trial for trial in self.running if self.n_epochs(trial) == max_epochs]:
            self.running.remove(trial)
            self.on_trial_end(trial, "finished")

    def stop(self) -> None:
        """Stop all running trials, since no other is left to compare with."""
        for trial in self.running:
            self.on_trial_end(trial, "finished")
        self.running = []

    def _remove(self, trial: int, status: TrialStatus) -> None:
        self.active.remove(trial)
        if trial in self.running:
            self.running.remove(trial)
            self.on_trial_end(trial, status)

    def outcome(self) -> SearchOutcome:
        """Return the outcome after all steps."""
        return SearchOutcome(
            winner=max(self.active, key=lambda trial: self.accuracies[trial][-1], default=None),
            epochs=tuple(self.n_epochs(trial) for trial in range(self.trials)),
            eliminated_after=tuple(self.pruned),
            failed=tuple(self.failed),
        )


def _prune(state: _SearchState, tolerance: Tolerance) -> None:
    # Compare at the longest runs first, so that the trials they prune take no part in the shorter comparisons:
    # two groups compared at once could prune each other.
    for epoch in sorted({state.n_epochs(trial) for trial in state.running}, reverse=True):
        reached = [trial for trial in state.active if state.n_epochs(trial) >= epoch]
        if reached:
            values = {trial: state.accuracies[trial][epoch - 1] for trial in reached}
            stay = survivors([*values.values()], tolerance)
            state.prune(
                {
                    trial: [other for other in reached if not survivors([values[trial], values[other]], tolerance)[0]]
                    for trial in compress(reached, ~stay)
                },
                epoch,
            )
