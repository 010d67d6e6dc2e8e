"""What features and settings must satisfy before anything is computed from them."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError

_ROWS = 8192


@dataclass(frozen=True, kw_only=True)
class FeatureMends:
    """What to do about features from which no map can be drawn, by what is wrong with them; ends of messages."""

    not_finite: str
    all_equal: str


OF_AN_EXTRACTOR = FeatureMends(
    not_finite=(
        "the extractor has diverged: lower finetune.learning_rate, or delete the file if it is damaged, "
        "and run `dvc repro`"
    ),
    all_equal="the extractor has collapsed: lower finetune.learning_rate or use more images, and run `dvc repro`",
)


def check_features(features: NDArray[np.float32], source: str, mends: FeatureMends = OF_AN_EXTRACTOR) -> None:
    """Refuse features from which no map can be drawn.

    Args:
        features: (N, D); read in blocks, so a memory map stays one.
        source: the file to name.
        mends: for whoever made them.

    Raises:
        InputError: a value is NaN or infinite, or all rows are equal.
    """
    first, all_equal = features[:1], True
    for start in range(0, len(features), _ROWS):
        block = features[start : start + _ROWS]
        bad = ~np.isfinite(block).all(axis=1)
        if bad.any():
            raise InputError(f"{source}: row {start + int(bad.argmax())} holds NaN or infinity; {mends.not_finite}")
        all_equal = all_equal and bool((block == first).all())
    if all_equal:
        raise InputError(
            f"{source}: all {len(features)} rows are equal, so the images cannot be told apart; {mends.all_equal}"
        )


def largest_perplexity(n: int) -> float:
    """The largest perplexity for `n` points: t-SNE looks at 3 x perplexity neighbours of each."""
    return (n - 1) / 3


def check_settings(n: int, dimensions: int, *, n_components: int | None, neighbors: int) -> None:
    """Refuse settings that `n` training images with features of `dimensions` cannot meet.

    Raises:
        InputError: naming the key of the `reduce` section, its value and the largest that works.
    """
    most = min(n, dimensions)
    if n_components is not None and n_components > most:
        raise InputError(
            f"reduce.pca.n_components: {n_components} is more than {n} training images of {dimensions} features "
            f"have; give at most {most}, or null for no PCA"
        )
    if neighbors > n - 1:
        raise InputError(
            f"reduce.neighbors: {neighbors} is too many for {n} training images; give at most {max(n - 1, 0)}"
        )


def check_perplexity(n: int, perplexity: float, *, key: str) -> None:
    """Refuse a perplexity, given by `key`, that a map fitted to `n` images cannot have.

    Raises:
        InputError: naming the key, its value and the largest that works.
    """
    if perplexity > largest_perplexity(n):
        largest = math.floor(largest_perplexity(n) * 100) / 100
        raise InputError(f"{key}: {perplexity:g} is too large for a map of {n} images; give at most {largest:g}")
