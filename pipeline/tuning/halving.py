"""Successive halving and Hyperband as schedules: how many trials reach how many epochs.

Hyperband runs successive halving several times, from many trials stopped early to few that all run to the end. How
early a good trial stands out is unknown (Li et al. 2018, JMLR 18(185), algorithm 1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


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
