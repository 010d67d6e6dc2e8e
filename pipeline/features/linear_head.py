"""A linear classifier on features of a frozen network: what its last layer can be without an optimizer's run."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

MOST_ITERATIONS = 1000


@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """Logits are `features @ weight.T + bias`.

    Attributes:
        weight: (n_classes, D) float64.
        bias: (n_classes,) float64.
        train_loss: mean cross-entropy on the images of the fit, in nats.
        iterations: of L-BFGS.
        converged: False where it stopped after `MOST_ITERATIONS`.
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    train_loss: float
    iterations: int
    converged: bool


def fit_head(features: NDArray[np.float32], labels: NDArray[np.int64]) -> LinearHead:
    """Multinomial logistic regression on standardised features, with scikit-learn's own L2 penalty (C = 1).

    The standardisation is part of the returned layer. Equal inputs give equal results.

    Args:
        features: (N, D).
        labels: (N,), each of 0 to n_classes - 1 at least once, and two of them or more.
    """
    assert len(np.unique(labels)) == labels.max() + 1 >= 2, np.unique(labels)
    scaler, regression = StandardScaler(), LogisticRegression(max_iter=MOST_ITERATIONS)
    model = make_pipeline(scaler, regression)
    exact = features.astype(np.float64)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(exact, labels)
    coefficients, intercepts = regression.coef_, regression.intercept_
    if len(coefficients) == 1:
        # Of two classes it gives the difference of their logits.
        coefficients, intercepts = (np.concatenate([-half, half]) for half in (coefficients / 2, intercepts / 2))
    weight = coefficients / scaler.scale_
    iterations = int(regression.n_iter_.max())
    return LinearHead(
        weight=weight,
        bias=intercepts - weight @ scaler.mean_,
        train_loss=float(log_loss(labels, model.predict_proba(exact))),
        iterations=iterations,
        converged=iterations < MOST_ITERATIONS,
    )
