"""How well suspicion finds images that are known to be labeled wrongly, with its uncertainty."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MEASURES = (
    "auroc",
    "average_precision",
    "f1_at_true_share",
    "precision_at_5_percent",
    "recall_at_5_percent",
)
"""What is measured, each 0 to 1.

`auroc`: area under the ROC curve, the chance that a wrong label is more suspect than a right one, ties
counting half. `average_precision`: as scikit-learn's, over distinct values. The others cut the ranking
at a number of images: as many as there are wrong ones, where precision, recall and F1 are the same
number; and round(N / 20), at least 1. Of values equal at the cut as many count as would be expected if
ties were broken at random.
"""

_SHARE = 0.05
_ENDS = (0.025, 0.975)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A measure, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ScorerComparison:
    """Scorer -> measure -> interval.

    Attributes:
        measured: of each scorer.
        differences: of each scorer less the reference, which is not among them.
    """

    measured: dict[str, dict[str, Interval]]
    differences: dict[str, dict[str, Interval]]


def detection(values: NDArray[np.float64], planted: NDArray[np.bool_]) -> dict[str, float]:
    """`MEASURES` of one scorer.

    Args:
        values: (N,) suspicion, higher = more suspect, possibly infinite, never NaN.
        planted: (N,) the images that are wrong: at least one, and not all.
    """
    found = _Ranking(values, planted).measures(np.ones(len(values)))
    return dict(zip(MEASURES, found.tolist(), strict=True))


def compare(
    values: Mapping[str, NDArray[np.float64]],
    planted: NDArray[np.bool_],
    *,
    reference: str,
    resamples: int = 1000,
    seed: int = 0,
) -> ScorerComparison:
    """`MEASURES` of each scorer and its differences to one, with bootstrap percentile intervals.

    The bootstrap (Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapters 8 and 13) is
    paired: all scorers see the same resampled images. Wrong and right ones are resampled each among
    themselves, since how many are wrong is part of the design. It says what other images would have
    changed, not another training run.

    Args:
        values: scorer -> (N,) as in `detection`.
        planted: (N,) as in `detection`.
        reference: the scorer that others are compared with, one of `values`.
    """
    assert reference in values, reference
    rankings = {name: _Ranking(of_scorer, planted) for name, of_scorer in values.items()}
    rng = np.random.default_rng(seed)
    n = len(planted)
    strata = [np.flatnonzero(planted), np.flatnonzero(~planted)]
    drawn = np.empty((resamples, len(rankings), len(MEASURES)))
    for resample in drawn:
        ids = np.concatenate([rng.choice(stratum, size=len(stratum)) for stratum in strata])
        weights = np.bincount(ids, minlength=n).astype(np.float64)
        for row, ranking in zip(resample, rankings.values(), strict=True):
            row[:] = ranking.measures(weights)
    found = np.array([ranking.measures(np.ones(n)) for ranking in rankings.values()])
    at = list(rankings).index(reference)
    measured = _intervals(list(rankings), found, drawn)
    differences = _intervals(list(rankings), found - found[at], drawn - drawn[:, at : at + 1])
    return ScorerComparison(
        measured=measured, differences={name: row for name, row in differences.items() if name != reference}
    )


def _intervals(
    names: list[str], found: NDArray[np.float64], drawn: NDArray[np.float64]
) -> dict[str, dict[str, Interval]]:
    """Of measures `found` (scorers, measures) and `drawn` (resamples, scorers, measures)."""
    low, high = np.quantile(drawn, _ENDS, axis=0)
    return {
        name: {
            measure: Interval(value=float(found[i, j]), low=float(low[i, j]), high=float(high[i, j]))
            for j, measure in enumerate(MEASURES)
        }
        for i, name in enumerate(names)
    }


class _Ranking:
    """One scorer's groups of equal values, most suspect first: sorted once, counted in every resample.

    `roc_auc_score` and `average_precision_score` with `sample_weight` sort in every resample: at 50,000 images 18 ms
    instead of .7 ms, 1,000 times for each scorer. The cuts, where ties count by their expectation, need the groups too.
    """

    def __init__(self, values: NDArray[np.float64], planted: NDArray[np.bool_]) -> None:
        assert values.shape == planted.shape, (values.shape, planted.shape)
        assert 0 < planted.sum() < len(planted)
        assert not np.isnan(values).any()
        self._planted = planted
        distinct, self._group = np.unique(-values, return_inverse=True)
        self._n_groups = len(distinct)

    def measures(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """`MEASURES` where image i counts weights (N,) times."""
        # Images named and wrong ones among them, down to each group; from none at all.
        named = self._cumulated(weights)
        hits = self._cumulated(weights * self._planted)
        n, n_wrong = named[-1], hits[-1]
        new_hits, new_false = np.diff(hits), np.diff(named - hits)
        auroc = (new_false * (hits[1:] + hits[:-1]) / 2).sum() / (n_wrong * (n - n_wrong))
        precision = hits[1:] / np.maximum(named[1:], 1)
        few = max(1, round(_SHARE * n))
        hits_at_share, hits_at_few = np.interp([n_wrong, few], named, hits)
        return np.array(
            [
                auroc,
                (new_hits * precision).sum() / n_wrong,
                hits_at_share / n_wrong,
                hits_at_few / few,
                hits_at_few / n_wrong,
            ]
        )

    def _cumulated(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(groups + 1,) sums of weights down to each group, after a 0."""
        return np.concatenate([[0.0], np.bincount(self._group, weights, minlength=self._n_groups).cumsum()])
