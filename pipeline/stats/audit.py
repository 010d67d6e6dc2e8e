"""How many false runs an audit of a random sample excludes: exact probabilities of sampling without replacement."""

import math


def chance_of_detection(n_runs: int, n_audited: int, n_false: int) -> float:
    """Return the probability that a sample has at least one false run, 0 to 1: the hypergeometric distribution.

    Args:
        n_runs: runs that the sample is taken from.
        n_audited: runs of the sample, without replacement, at most `n_runs`.
        n_false: false ones among `n_runs`.
    """
    assert 0 <= n_false <= n_runs
    assert 0 <= n_audited <= n_runs
    return 1 - _chance_of_none(n_runs, n_audited, n_false)


def _chance_of_none(n_runs: int, n_audited: int, n_false: int) -> float:
    return math.comb(n_runs - n_false, n_audited) / math.comb(n_runs, n_audited)


def excluded_count(n_runs: int, n_audited: int, alpha: float) -> int:
    """Return the fewest false runs that an audit without findings excludes; `n_runs` + 1 if it excludes none.

    If as many or more runs were false, a sample would find none with a probability of at most `alpha`. Since each of a
    finite number of runs is audited at most once, the bound is tighter than `excluded_share`.
    """
    counts = range(1, n_runs + 1)
    return next((m for m in counts if _chance_of_none(n_runs, n_audited, m) <= alpha), n_runs + 1)


def excluded_share(n_audited: int, alpha: float) -> float:
    """Return the share of false runs, 0 to 1, that an audit without findings excludes: 1 - alpha^(1 / n_audited).

    It holds for samples with replacement, and for any number of runs.
    """
    return 1.0 - float(alpha ** (1 / n_audited)) if n_audited else 1.0
