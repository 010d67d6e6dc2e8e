"""Class probabilities where no network gives any: a cross-validated logistic regression on the components.

A linear probe is how representations are usually judged (Alain and Bengio, 2016, arXiv:1610.01644);
out of fold, no image has a say in its own probabilities.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from pipeline.errors import InputError
from pipeline.features.linear_head import fit_head


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What the regressions say, and how they ended.

    Attributes:
        probabilities: (N, n_classes) float32, rows sum to 1; 0 for a class that the other folds do not have.
        iterations: of L-BFGS, by fold.
        converged: whether every fold's regression did.
    """

    probabilities: NDArray[np.float32]
    iterations: list[int]
    converged: bool


def probe_folds(
    labels: NDArray[np.int64],
    n_folds: int,
    seed: int,
    *,
    key: str = "filter.scorer",
    fix: str = "give --probabilities, or take knn_agreement",
) -> NDArray[np.int64]:
    """(N,) fold of each row: every class is dealt out in a drawn order, so that folds differ by one image a class.

    Args:
        key: what an error names.
        fix: what to do about it.

    Raises:
        InputError: there are fewer images than folds, or the images outside a fold are of one class.
    """
    if len(labels) < n_folds:
        raise InputError(f"{key}: {len(labels)} images do not make the {n_folds} folds of a probe; {fix}")
    rng = np.random.default_rng(seed)
    folds = np.empty(len(labels), dtype=np.int64)
    dealt = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        # Classes go on where the one before ended, so that small ones do not all meet in the first fold.
        folds[rows] = (dealt + np.arange(len(rows))) % n_folds
        dealt += len(rows)
    for fold in range(n_folds):
        if len(np.unique(labels[folds != fold])) < 2:
            raise InputError(
                f"{key}: outside fold {fold} of {n_folds} there is only one class for a probe to learn; {fix}"
            )
    return folds


def cross_validated_probabilities(
    components: NDArray[np.float32], labels: NDArray[np.int64], *, folds: NDArray[np.int64], n_classes: int
) -> Probed:
    """Probabilities of each fold's images by a regression on those of the others.

    Args:
        components: (N, d); they are standardised.
        labels: (N,), 0 to `n_classes` - 1.
        folds: (N,), of `probe_folds`.
    """
    probabilities = np.zeros((len(labels), n_classes), dtype=np.float32)
    heads = []
    for fold in range(folds.max() + 1):
        held_out = folds == fold
        # The regression numbers the classes that it sees.
        seen, targets = np.unique(labels[~held_out], return_inverse=True)
        head = fit_head(components[~held_out], targets)
        logits = components[held_out] @ head.weight.T + head.bias
        probabilities[np.ix_(held_out, seen)] = softmax(logits, axis=1)
        heads.append(head)
    return Probed(
        probabilities=probabilities,
        iterations=[head.iterations for head in heads],
        converged=all(head.converged for head in heads),
    )
