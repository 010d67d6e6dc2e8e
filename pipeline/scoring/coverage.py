"""Coverage-centric coreset selection: keep images of every difficulty, without the hardest.

Zheng, Liu, Lai and Prakash (2023), Coverage-centric Coreset Selection for High Pruning Rates, arXiv 2210.15809.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.scoring.base import ScoredImages, Scorer, ScorerInputs

# Strata of equal width are of differences: of the margin itself for `aum`, and of logarithmic odds.
_RATIOS = ("aum", "label_odds")


def make_ccs(registry: Mapping[str, Scorer]) -> Scorer:
    """Return the scorer that selects by strata of the values of another scorer of a registry."""

    def values(
        inputs: ScorerInputs, *, scorer: Mapping[str, Any], beta: float, bins: int, seed: int
    ) -> NDArray[np.float64]:
        """Return `dropping_order` of the scorer's values (N,)."""
        options = {key: value for key, value in scorer.items() if key != "name"}
        difficulty = registry[scorer["name"]].values(inputs, **options)
        if scorer["name"] in _RATIOS:
            with np.errstate(divide="ignore"):
                difficulty = np.log(difficulty)
        return dropping_order(difficulty, beta, bins, seed)

    def reasons(scored: ScoredImages) -> list[str]:
        name, beta, bins = (scored.options[key] for key in ("scorer", "beta", "bins"))
        sampled = f"in its stratum of {bins} by {name['name']} (seed {scored.options['seed']})"
        return [
            f"{'among' if value > threshold else 'kept, although among'} the most suspect {100 * beta:g} % by "
            f"{name['name']}"
            if value > 1
            else f"{'not sampled' if value > threshold else 'sampled'} {sampled}"
            for value, threshold in scored.pairs
        ]

    return Scorer(values=values, reasons=reasons)


def dropping_order(difficulty: NDArray[np.float64], beta: float, bins: int, seed: int) -> NDArray[np.float64]:
    """Return values (N,), 0 to 2, by which any share of the images can be dropped, the highest first.

    The hardest share `beta` is dropped first, with values above 1. The difficulties of the others are divided into
    `bins` strata of equal width. Strata keep equal numbers of random images; one with fewer images keeps all, and the
    others share the rest. A larger budget adds images to those of a smaller one.

    Args:
        difficulty: (N,), higher is harder; infinite values are the hardest.
        beta: 0 to less than 1.
        seed: of the choice within strata, and among equal difficulties.
    """
    n = len(difficulty)
    rng = np.random.default_rng(seed)
    uniform = rng.random(n)
    order = np.lexsort((uniform, difficulty))
    n_easier = n - round(beta * n)
    values = np.empty(n)
    hardest = order[n_easier:]
    values[hardest] = 1 + (np.arange(len(hardest)) + 1) / max(1, len(hardest))
    rest = order[:n_easier]
    # An image's place in the random order of its stratum; equal places of several strata follow another random number.
    place = _random_places(_strata(difficulty[rest], bins), rng)
    values[rest] = (place + rng.random(len(rest))) / (place.max(initial=0) + 1)
    return values


def _strata(difficulty: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    """Return the stratum (n,), 0 to bins - 1, of difficulties, of equal width between the finite extremes."""
    finite = difficulty[np.isfinite(difficulty)]
    low, extent = (finite.min(), np.ptp(finite)) if len(finite) else (0.0, 0.0)
    scaled = np.clip((difficulty - low) / (extent or 1.0), 0, 1)
    return np.asarray(np.minimum(scaled * bins, bins - 1), dtype=np.int64)


def _random_places(strata: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the place (n,), from 0, of each image in a random order of its stratum."""
    order = np.lexsort((rng.random(len(strata)), strata))
    starts = np.searchsorted(strata[order], strata[order])
    places = np.empty(len(strata), dtype=np.int64)
    places[order] = np.arange(len(strata)) - starts
    return places
