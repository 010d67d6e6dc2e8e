"""Early elimination of trials that fall behind, after the example of Rand (2021).

After each epoch every trial that lies too far below the best at that epoch is dropped. In lockstep all trials finish
an epoch before any is judged, so the outcome depends on neither their order nor their speed. One after another costs
more as a rule: the first trial has nobody to be compared with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the trials; both sequences have one entry for each, in the order of the table.

    Attributes:
        winner: index of the trial that alone remained, or of the best of those that reached the cap; of equals the
            first.
        epochs: how many each trial ran.
        eliminated_after: the epoch whose comparison eliminated it, None for trials that never were. One after
            another, a trial can have run for longer than that.
    """

    winner: int
    epochs: tuple[int, ...]
    eliminated_after: tuple[int | None, ...]

    @property
    def total_epochs(self) -> int:
        return sum(self.epochs)


def remaining(accuracies: ArrayLike, tolerance: Tolerance) -> NDArray[np.bool_]:
    """Which trials stay after an epoch that all of them finished; the best always does.

    Args:
        accuracies: (n_trials,) of those still in the race, each 0 to 1.

    Returns:
        bool (n_trials,).
    """
    values = _checked(accuracies, ndim=1)
    best = values.max()
    allowed = tolerance.amount * (best if tolerance.kind == "relative" else 1.0)
    stay: NDArray[np.bool_] = best - values <= allowed + _ROUNDING
    return stay


def eliminate(
    measure: Callable[[Sequence[int], int], ArrayLike], *, trials: int, cap: int, tolerance: Tolerance
) -> Outcome:
    """Run trials in lockstep until one alone remains after an epoch, or to the cap.

    Args:
        measure: given the trials in the race (ascending) and an epoch from 1, trains each of them for that epoch and
            returns their accuracies in the same order. A trial that diverged has accuracy 0.
        trials: how many, >= 1.
        cap: most epochs of a trial, >= 1.
    """
    assert trials >= 1, trials
    assert cap >= 1, cap
    racing = np.arange(trials)
    epochs = np.zeros(trials, dtype=int)
    eliminated: list[int | None] = [None] * trials
    for epoch in range(1, cap + 1):
        accuracies = np.asarray(measure(racing.tolist(), epoch), dtype=np.float64)
        assert accuracies.shape == racing.shape, (accuracies.shape, racing.shape)
        epochs[racing] = epoch
        stay = remaining(accuracies, tolerance)
        for trial in racing[~stay]:
            eliminated[trial] = epoch
        racing, accuracies = racing[stay], accuracies[stay]
        if len(racing) == 1:
            break
    winner = int(racing[accuracies.argmax()])
    return Outcome(winner=winner, epochs=tuple(epochs.tolist()), eliminated_after=tuple(eliminated))


def lockstep(table: ArrayLike, tolerance: Tolerance) -> Outcome:
    """What `eliminate` does to trials whose accuracies are known.

    Args:
        table: (n_trials, cap), the accuracy of each trial after each epoch, 0 to 1.
    """
    values = _checked(table, ndim=2)
    trials, cap = values.shape
    return eliminate(lambda racing, epoch: values[racing, epoch - 1], trials=trials, cap=cap, tolerance=tolerance)


def sequential(table: ArrayLike, tolerance: Tolerance, order: Sequence[int]) -> Outcome:
    """The same rule on trials that run one after another.

    After each of its epochs a trial is compared with the earlier ones that are still in the race. It can eliminate
    them, although they are finished. Those eliminated count no more: they would otherwise eliminate, at a later epoch,
    the very trial that beat them, and nobody would be left. Only the last trial knows that no other is to come, and
    stops as soon as it alone remains.

    Args:
        table: (n_trials, cap), the accuracy of each trial after each epoch, 0 to 1.
        order: every trial once.
    """
    values = _checked(table, ndim=2)
    trials, cap = values.shape
    assert sorted(order) == list(range(trials)), order
    racing: list[int] = []
    epochs = [0] * trials
    eliminated: list[int | None] = [None] * trials
    for place, trial in enumerate(order, start=1):
        racing.append(trial)
        for epoch in range(1, cap + 1):
            epochs[trial] = epoch
            stay = remaining(values[racing, epoch - 1], tolerance)
            for other, stays in zip(racing, stay, strict=True):
                eliminated[other] = None if stays else epoch
            racing = [other for other in racing if eliminated[other] is None]
            if trial not in racing or (place == trials and racing == [trial]):
                break
    winner = max(sorted(racing), key=lambda one: values[one, -1])
    return Outcome(winner=winner, epochs=tuple(epochs), eliminated_after=tuple(eliminated))


def _checked(accuracies: ArrayLike, *, ndim: int) -> NDArray[np.float64]:
    values = np.asarray(accuracies, dtype=np.float64)
    assert values.ndim == ndim, values.shape
    assert values.size > 0
    assert ((values >= 0) & (values <= 1)).all(), "an accuracy lies outside 0 to 1"
    return values
