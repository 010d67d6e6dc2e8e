"""Which trials train next, and which end early."""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.tuning.halving import Rung, promoted

# Early elimination of trials that fall behind, after the example of Rand (2021): who stays after an epoch.


# Accuracies are decimal fractions: 0.8 is 0.1 below 0.9 and 0.7 is 0.1 below 0.8, whatever the last bit says.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far below the best a trial may lie and stay.

    Attributes:
        amount: in [0, 1): as accuracy if absolute, as a share of the best accuracy if relative.
        kind: at a best accuracy of 0.5, an amount of 0.1 keeps 0.40 and above if absolute, 0.45 if relative.
    """

    amount: float
    kind: Literal["absolute", "relative"]

    def __post_init__(self) -> None:
        assert 0 <= self.amount < 1, self.amount


def survivors(accuracies: ArrayLike, tolerance: Tolerance) -> NDArray[np.bool_]:
    """Which trials stay after an epoch that all of them finished; the best always does.

    Args:
        accuracies: (n_trials,) of those still in the race, each 0 to 1.

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


# Which trial trains which epoch next, and which ends: the course of a search as a function of the accuracies alone.
#
# Rounds are in lockstep: all trials in the race finish an epoch before any is judged. So the outcome depends on
# neither
# their speed nor the order in which they arrive, and a search that was interrupted takes the same course again.


TrialStatus = Literal["finished", "eliminated", "failed"]


class TrialStep(NamedTuple):
    """The next thing to do: `trial`, from 0, trains its `epoch`, from 1."""

    trial: int
    epoch: int


Measure = Callable[[Sequence[TrialStep]], Sequence[float | None]]
"""Trains, and returns the accuracies (0 to 1) in the same order; None for a trial that failed or diverged."""

Ended = Callable[[int, TrialStatus], None]
"""Is told of each trial that trains no more, before the next turns are asked for."""


@dataclass(frozen=True, kw_only=True)
class SearchOutcome:
    """What became of the trials; the sequences have one entry for each.

    Attributes:
        winner: the best, after its last epoch, of those that neither failed nor were eliminated (of equals the
            first); None exactly if all failed.
        epochs: how many each trial finished; one that it failed in is none.
        eliminated_after: the epoch whose comparison eliminated it, None for trials that never were, and for those
            whose eliminators all failed later: they can win, but do not train on. One after another, a trial can
            have run for longer than that.
        failed: which failed or diverged.
    """

    winner: int | None
    epochs: tuple[int, ...]
    eliminated_after: tuple[int | None, ...]
    failed: tuple[bool, ...]

    @property
    def total_epochs(self) -> int:
        return sum(self.epochs)


@dataclass(kw_only=True)
class _Trials:
    """All trials as they stand; `race` holds those that nothing has put out, ascending, whether they still run or not.

    A trial that is out counts no more: it would otherwise eliminate, at a later epoch, the very trial that beat it,
    and nobody would be left. Nor does one that fails, not even for what it did before: whoever was put out by failed
    trials alone is in the race again. So somebody is left unless all fail: of any trial that stays out, another that
    has not failed was ahead, then or later, and the last of these is in.
    """

    trials: int
    measure: Measure
    ended: Ended
    race: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accuracies: list[list[float]] = [[] for _ in range(self.trials)]
        self.eliminated: list[int | None] = [None] * self.trials
        self.eliminators: dict[int, Sequence[int]] = {}
        self.failed = [False] * self.trials

    def start(self, trial: int) -> None:
        self.race.append(trial)
        self.running.append(trial)

    def epoch_of(self, trial: int) -> int:
        return len(self.accuracies[trial])

    def advance(self) -> None:
        """All that run train one epoch; failed ones leave, and with them what they alone decided."""
        turns = [TrialStep(trial, self.epoch_of(trial) + 1) for trial in self.running]
        for (trial, _), accuracy in zip(turns, self.measure(turns), strict=True):
            if accuracy is None:
                self.failed[trial] = True
                self._leave(trial, "failed")
            else:
                self.accuracies[trial].append(accuracy)
        for trial, others in list(self.eliminators.items()):
            if all(self.failed[other] for other in others):
                del self.eliminators[trial]
                self.eliminated[trial] = None
                insort(self.race, trial)

    def eliminate(self, eliminators: Mapping[int, Sequence[int]], epoch: int) -> None:
        """Put out every trial that `eliminators` names, each with those that were ahead of it at `epoch`."""
        for trial, others in eliminators.items():
            self.eliminators[trial], self.eliminated[trial] = others, epoch
            self._leave(trial, "eliminated")

    def finish(self, cap: int) -> None:
        """Those that have run all their epochs stay in the race and run no more."""
        for trial in [trial for trial in self.running if self.epoch_of(trial) == cap]:
            self.running.remove(trial)
            self.ended(trial, "finished")

    def stop(self) -> None:
        """Nobody is left to compare with."""
        for trial in self.running:
            self.ended(trial, "finished")
        self.running = []

    def _leave(self, trial: int, how: TrialStatus) -> None:
        self.race.remove(trial)
        if trial in self.running:
            self.running.remove(trial)
            self.ended(trial, how)

    def outcome(self) -> SearchOutcome:
        return SearchOutcome(
            winner=max(self.race, key=lambda trial: self.accuracies[trial][-1], default=None),
            epochs=tuple(self.epoch_of(trial) for trial in range(self.trials)),
            eliminated_after=tuple(self.eliminated),
            failed=tuple(self.failed),
        )


def run_threshold_pruning(
    measure: Measure, ended: Ended, *, trials: int, cap: int, places: int, tolerance: Tolerance | None
) -> SearchOutcome:
    """After each epoch eliminate every trial too far below the best at that epoch; freed places take the next trials.

    A trial is compared with all that have reached its epoch and are not out, whenever they did: with as many places as
    trials, all run side by side; with one place, one after another, and a later one can eliminate an earlier, finished
    one. A trial stops as soon as it alone remains and no other is to come. The rule is that of Rand (2021), who says
    nothing of trials that fail: here a comparison that only they had won counts no more.

    Args:
        trials: how many, >= 1.
        cap: most epochs of a trial, >= 1.
        places: trials that run at a time, >= 1.
        tolerance: None eliminates nobody.
    """
    assert min(trials, cap, places) >= 1, (trials, cap, places)
    standing, coming = _Trials(trials=trials, measure=measure, ended=ended), list(range(trials))
    while True:
        while coming and len(standing.running) < places:
            standing.start(coming.pop(0))
        if not standing.running:
            return standing.outcome()
        standing.advance()
        if tolerance is not None:
            _prune(standing, tolerance)
            if not coming and len(standing.race) == 1:
                standing.stop()
        standing.finish(cap)


def _prune(standing: _Trials, tolerance: Tolerance) -> None:
    # The longest runs first. Those they put out are gone when the shorter ones are judged: two groups judged at
    # once could put each other out.
    for epoch in sorted({standing.epoch_of(trial) for trial in standing.running}, reverse=True):
        there = [trial for trial in standing.race if standing.epoch_of(trial) >= epoch]
        if there:
            values = {trial: standing.accuracies[trial][epoch - 1] for trial in there}
            stay = survivors([*values.values()], tolerance)
            standing.eliminate(
                {
                    trial: [other for other in there if not survivors([values[trial], values[other]], tolerance)[0]]
                    for trial in compress(there, ~stay)
                },
                epoch,
            )


def run_halving(measure: Measure, ended: Ended, *, brackets: Sequence[Sequence[Rung]]) -> SearchOutcome:
    """Successive halving in each bracket, one bracket after another.

    If all that a rung promoted over a trial fail later, that trial can still win.

    Args:
        brackets: as `hyperband` gives them, or one of `successive_halving`; the trials of each follow those of the
            one before.
    """
    standing = _Trials(trials=sum(bracket[0].trials for bracket in brackets), measure=measure, ended=ended)
    first = 0
    for bracket in brackets:
        for trial in range(first, first + bracket[0].trials):
            standing.start(trial)
        for place, rung in enumerate(bracket):
            while standing.running and standing.epoch_of(standing.running[0]) < rung.epochs:
                standing.advance()
            if standing.running and place + 1 < len(bracket):
                best = promoted(
                    [standing.accuracies[trial][-1] for trial in standing.running],
                    min(bracket[place + 1].trials, len(standing.running)),
                )
                stay = [standing.running[index] for index in best]
                out = [trial for trial in standing.running if trial not in stay]
                standing.eliminate(dict.fromkeys(out, stay), rung.epochs)
        standing.finish(bracket[-1].epochs)
        first += bracket[0].trials
    return standing.outcome()
