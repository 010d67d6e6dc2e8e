"""Linear classifiers on features: heads for frozen backbones, and cross-validated probes."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pipeline.errors import InputError

MAX_ITERATIONS = 1000


@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """A linear classifier: logits are `features @ weight.T + bias`.

    Attributes:
        weight: (n_classes, D) float64.
        bias: (n_classes,) float64.
        train_loss: mean cross-entropy on the images of the fit, in nats.
        iterations: of L-BFGS.
        converged: False if it stopped after `MAX_ITERATIONS`.
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    train_loss: float
    iterations: int
    converged: bool


def fit_head(features: NDArray[np.float32], labels: NDArray[np.int64]) -> LinearHead:
    """Fit a multinomial logistic regression on standardized features, with scikit-learn's L2 penalty (C = 1).

    The returned layer includes the standardization. Equal inputs give equal results.

    Args:
        features: (N, D).
        labels: (N,), each of 0 to n_classes - 1 at least once, with two classes or more.
    """
    assert len(np.unique(labels)) == labels.max() + 1 >= 2, np.unique(labels)
    scaler, regression = StandardScaler(), LogisticRegression(max_iter=MAX_ITERATIONS)
    model = make_pipeline(scaler, regression)
    inputs = features.astype(np.float64)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(inputs, labels)
    coefficients, intercepts = regression.coef_, regression.intercept_
    if len(coefficients) == 1:
        # For two classes, scikit-learn fits the difference of their logits.
        coefficients, intercepts = (np.concatenate([-half, half]) for half in (coefficients / 2, intercepts / 2))
    weight = coefficients / scaler.scale_
    iterations = int(regression.n_iter_.max())
    return LinearHead(
        weight=weight,
        bias=intercepts - weight @ scaler.mean_,
        train_loss=float(log_loss(labels, model.predict_proba(inputs))),
        iterations=iterations,
        converged=iterations < MAX_ITERATIONS,
    )


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Out-of-fold predictions of a linear probe.

    Attributes:
        probabilities: (N, n_classes) float32, rows sum to 1; 0 for a class that is missing in the other folds.
        iterations: of L-BFGS, by fold.
        converged: whether the regressions of all folds converged.
    """

    probabilities: NDArray[np.float32]
    iterations: list[int]
    converged: bool


def probe_folds(
    labels: NDArray[np.int64],
    n_folds: int,
    seed: int,
    *,
    key: str,
    fix: str,
) -> NDArray[np.int64]:
    """Return the fold (N,) of each row, stratified in random order: folds differ by at most one image of each class.

    Args:
        labels: (N,).
        key, fix: for error messages.

    Raises:
        InputError: there are fewer images than folds, or the images outside a fold are of one class.
    """
    if len(labels) < n_folds:
        raise InputError(f"{key}: {len(labels)} images do not make the {n_folds} folds of a probe; {fix}")
    rng = np.random.default_rng(seed)
    folds = np.empty(len(labels), dtype=np.int64)
    n_assigned = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        # A class starts at the fold after the previous one ended, so that small classes spread over the folds.
        folds[rows] = (n_assigned + np.arange(len(rows))) % n_folds
        n_assigned += len(rows)
    for fold in range(n_folds):
        if len(np.unique(labels[folds != fold])) < 2:
            raise InputError(
                f"{key}: outside fold {fold} of {n_folds} there is only one class for a probe to learn; {fix}"
            )
    return folds


def cross_validated_probabilities(
    components: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    folds: NDArray[np.int64],
    n_classes: int,
    report: Callable[[], None] = lambda: None,
) -> ProbeResult:
    """Predict the class probabilities of each fold's images by a logistic regression on the other folds.

    A linear probe evaluates representations (Alain and Bengio, 2016, arXiv:1610.01644). Out of fold, an image does not
    affect its own probabilities.

    Args:
        components: (N, d); they are standardized.
        labels: (N,), 0 to `n_classes` - 1.
        folds: (N,), from `probe_folds`.
        report: called after each fold.
    """
    probabilities = np.zeros((len(labels), n_classes), dtype=np.float32)
    heads = []
    for fold in range(folds.max() + 1):
        held_out = folds == fold
        # The regression numbers the classes of its training rows.
        seen, targets = np.unique(labels[~held_out], return_inverse=True)
        head = fit_head(components[~held_out], targets)
        logits = components[held_out] @ head.weight.T + head.bias
        probabilities[np.ix_(held_out, seen)] = softmax(logits, axis=1)
        heads.append(head)
        report()
    return ProbeResult(
        probabilities=probabilities,
        iterations=[head.iterations for head in heads],
        converged=all(head.converged for head in heads),
    )
