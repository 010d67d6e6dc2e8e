"""Successive halving and Hyperband, as schedules: how many trials reach how many epochs.

Hyperband runs successive halving several times, from many trials stopped early to few that all run to the end, since
nobody knows beforehand how early a good trial can be told (Li et al. 2018, JMLR 18(185), algorithm 1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True)
class Rung:
    """So many trials, each trained until it has run so many epochs in all."""

    trials: int
    epochs: int


def successive_halving(*, trials: int, cap: int, factor: int, halvings: int) -> list[Rung]:
    """After each rung the best of every `factor` trials go on, to `factor` times the epochs.

    The i-th rung has floor(trials / factor^i) trials and floor(cap / factor^(halvings - i)) epochs.

    Args:
        trials: of the first rung, >= factor^halvings, so that one is left.
        cap: epochs of the last rung, >= factor^halvings, so that the first has one.
        factor: >= 2, the eta of the paper.
        halvings: how many times trials are dropped, >= 0.
    """
    assert factor >= 2, factor
    assert halvings >= 0, halvings
    assert min(trials, cap) >= factor**halvings, (trials, cap, factor, halvings)
    return [Rung(trials=trials // factor**i, epochs=cap // factor ** (halvings - i)) for i in range(halvings + 1)]


def hyperband(*, cap: int, factor: int) -> list[list[Rung]]:
    """The brackets, from the one that halves most often to the one that never does.

    With s_max = floor(log_factor(cap)), the bracket of s halvings starts ceil((s_max + 1) factor^s / (s + 1)) trials,
    so that all brackets cost about the same. Epochs are whole: where `cap` is no power of `factor` they are rounded
    down.

    Args:
        cap: most epochs of a trial, >= 1; the R of the paper.
        factor: >= 2; its eta.
    """
    assert cap >= 1, cap
    assert factor >= 2, factor
    most = 0
    while factor ** (most + 1) <= cap:
        most += 1
    return [
        successive_halving(
            trials=-(-(most + 1) * factor**halvings // (halvings + 1)), cap=cap, factor=factor, halvings=halvings
        )
        for halvings in range(most, -1, -1)
    ]


def promoted(accuracies: ArrayLike, keep: int) -> list[int]:
    """The `keep` best trials of a rung, ascending; of equals the first.

    Args:
        accuracies: (n_trials,) after the epochs of the rung.
        keep: 1 to n_trials.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    assert 1 <= keep <= len(values), (keep, len(values))
    assert np.isfinite(values).all()
    return sorted(np.argsort(-values, kind="stable")[:keep].tolist())
