"""Check features, and the settings of a reduction, before the work starts.

Without openTSNE and faiss, which an installation for training alone does not have.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError

_ROWS = 8192
# PCA sums squares in float32, which overflow from 1e19 on and vanish below 1e-22.
_MAX_FEATURE = 1e15
_MIN_FEATURE = 1e-15


@dataclass(frozen=True, kw_only=True)
class FeatureFixHints:
    """How to fix features, for the ends of error messages, by problem."""

    not_finite: str
    all_equal: str
    too_small: str


EXTRACTOR_FIX_HINTS = FeatureFixHints(
    not_finite=(
        "the extractor has diverged: lower finetune.learning_rate, or delete the file if it is damaged, "
        "and run `dvc repro`"
    ),
    all_equal="the extractor has collapsed: lower finetune.learning_rate or use more images, and run `dvc repro`",
    too_small="the extractor has collapsed: lower finetune.weight_decay or finetune.learning_rate, and run `dvc repro`",
)


def check_features(
    features: NDArray[np.float32], source: str, fix_hints: FeatureFixHints = EXTRACTOR_FIX_HINTS
) -> None:
    """Check that features are finite, not too large or small for PCA, and not all equal.

    Args:
        features: (N, D); read in blocks, so that a memory map is never loaded completely.
        source: the file to name.
        fix_hints: for the origin of the features.

    Raises:
        InputError: a value is NaN, infinite or beyond 1e15, all are within 1e-15 of 0, or all rows are equal.
    """
    first, all_equal, all_small = features[:1], True, True
    for start in range(0, len(features), _ROWS):
        block = features[start : start + _ROWS]
        sizes = np.abs(block)
        bad = ~(sizes <= _MAX_FEATURE).all(axis=1)  # NaN too
        if bad.any():
            row = int(bad.argmax())
            what = f"a value beyond {_MAX_FEATURE:g}" if np.isfinite(block[row]).all() else "NaN or infinity"
            raise InputError(f"{source}: row {start + row} holds {what}; {fix_hints.not_finite}")
        all_equal = all_equal and bool((block == first).all())
        all_small = all_small and bool((sizes < _MIN_FEATURE).all())
    if all_equal:
        raise InputError(
            f"{source}: all {len(features)} rows are equal, so no image differs from another; {fix_hints.all_equal}"
        )
    if all_small:
        raise InputError(f"{source}: all values are within {_MIN_FEATURE:g} of 0; {fix_hints.too_small}")


def max_perplexity(n: int) -> float:
    """Return the largest perplexity for `n` points: t-SNE uses 3 x perplexity neighbors of each."""
    return (n - 1) / 3


def check_settings(n: int, dimensions: int, *, n_components: int | None, neighbors: int) -> None:
    """Check that settings fit `n` training images with features of `dimensions`.

    Raises:
        InputError: naming the key of the `reduce` section, its value and the largest that works.
    """
    largest = min(n, dimensions)
    if n_components is not None and n_components > largest:
        raise InputError(
            f"reduce.pca.n_components: {n_components} is more than {n} training images of {dimensions} features "
            f"have; give at most {largest}, or null for no PCA"
        )
    if neighbors > n - 1:
        raise InputError(
            f"reduce.n_neighbors: {neighbors} is too many for {n} training images; give at most {max(n - 1, 0)}"
        )


def check_perplexity(n: int, perplexity: float, *, key: str) -> None:
    """Check that the perplexity of `key` fits an embedding of `n` images.

    Raises:
        InputError: naming the key, its value and the largest that works.
    """
    if perplexity > max_perplexity(n):
        largest = math.floor(max_perplexity(n) * 100) / 100
        raise InputError(f"{key}: {perplexity:g} is too large for an embedding of {n} images; give at most {largest:g}")
