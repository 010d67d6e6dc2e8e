"""Class probabilities where no network gives any: a cross-validated logistic regression on the components.

A linear probe is how representations are usually judged (Alain and Bengio, 2016, arXiv:1610.01644);
out of fold, no image has a say in its own probabilities.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

_MOST_ITERATIONS = 1000


def folds_of(labels: NDArray[np.int64], n_folds: int, seed: int) -> NDArray[np.int64]:
    """(N,) fold of each row: every class is dealt out in a drawn order, so that folds differ by one image a class."""
    rng = np.random.default_rng(seed)
    folds = np.empty(len(labels), dtype=np.int64)
    dealt = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        # Classes go on where the one before ended, so that small ones do not all meet in the first fold.
        folds[rows] = (dealt + np.arange(len(rows))) % n_folds
        dealt += len(rows)
    return folds


def cross_validated_probabilities(
    components: NDArray[np.float32], labels: NDArray[np.int64], *, n_classes: int, n_folds: int, seed: int
) -> NDArray[np.float32]:
    """(N, n_classes), rows sum to 1: each fold's from a regression on the others.

    A class that the other folds do not have has probability 0.

    Args:
        components: (N, d); they are standardised.
        labels: (N,), two classes at least outside each fold.
        n_folds: at most N.
    """
    folds = folds_of(labels, n_folds, seed)
    probabilities = np.zeros((len(labels), n_classes), dtype=np.float32)
    for fold in range(n_folds):
        held_out = folds == fold
        probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=_MOST_ITERATIONS))
        probe.fit(components[~held_out], labels[~held_out])
        found = probe.predict_proba(components[held_out])
        probabilities[np.ix_(held_out, probe.classes_)] = found
    return probabilities
