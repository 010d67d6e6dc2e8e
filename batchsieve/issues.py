"""`find_issues`: find labels that are probably wrong, by class probabilities, features, or both."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsieve.arrays import (
    Labels,
    checked_features,
    checked_fraction,
    checked_integer,
    checked_probabilities,
    checked_seed,
    column_order_warning,
    labels_by_columns,
)
from batchsieve.evidence import N_COMPONENTS, content_order, neighbor_rows, principal_components, voted_probabilities
from batchsieve.suspect_table import SuspectTable
from pipeline.errors import InputError
from pipeline.run_log import RunLog, stderr_log
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.registry import SCORERS
from pipeline.scoring.suggestions import SuggestedLabels, suggest_labels
from pipeline.scoring.thresholds import threshold_for_share
from pipeline.scoring.votes import neighbor_phrases
from pipeline.scoring.wrong_share import WrongShare, estimate_wrong_share

LabelScorer = Literal[
    "label_odds", "margin", "self_confidence", "el2n", "confident_learning", "smoothed_confidence", "knn_agreement"
]
"""Scorers of `find_issues`. The last two need features, the others class probabilities, given or estimated."""

_NEIGHBOR_SCORERS = ("smoothed_confidence", "knn_agreement")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LabelIssues(SuspectTable):
    """Result of `find_issues` for N samples, in their order.

    Attributes:
        score: (N,) float64, 0 to 1; higher is more suspect. The meaning depends on the scorer, see `find_issues`.
        is_issue: (N,) bool, whether the score is above the threshold.
        reason: (N,) str, the evidence in words, for all samples.
        label: (N,) the labels of the input.
        suggested_label: (N,) the most probable class, in the type of the labels; it may be the label. From
            features alone, `knn_agreement` suggests the label of most of the ten nearest neighbors.
        suggested_probability: (N,) float32, 0 to 1, of the suggested label; of a vote its share.
        scorer: name of the scorer.
        threshold: of the score.
        wrong_share: estimated share of wrong labels with its interval; None unless `fraction` is "estimated".
    """

    score: NDArray[np.float64]
    is_issue: NDArray[np.bool_]
    reason: NDArray[np.object_]
    label: NDArray[Any]
    suggested_label: NDArray[Any]
    suggested_probability: NDArray[np.float32]
    scorer: str
    threshold: float
    wrong_share: WrongShare | None = None

    def __post_init__(self) -> None:
        arrays = (self.score, self.is_issue, self.reason, self.label, self.suggested_label, self.suggested_probability)
        for array in arrays:
            array.flags.writeable = False

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return label, score, is_issue, suggested_label, suggested_probability and reason, by sample."""
        return {
            "label": self.label,
            "score": self.score,
            "is_issue": self.is_issue,
            "suggested_label": self.suggested_label,
            "suggested_probability": self.suggested_probability,
            "reason": self.reason,
        }

    def __repr__(self) -> str:
        return f"LabelIssues({int(self.is_issue.sum()):,} of {len(self):,} samples, scorer={self.scorer!r})"


def find_issues(
    labels: ArrayLike,
    pred_probs: ArrayLike | None = None,
    features: ArrayLike | None = None,
    *,
    scorer: LabelScorer = "label_odds",
    fraction: float | Literal["estimated"] | None = None,
    class_names: Sequence[int] | Sequence[str] | None = None,
    n_neighbors: int = 10,
    n_components: int = N_COMPONENTS,
    folds: int = 5,
    progress: bool = False,
    seed: int = 0,
) -> LabelIssues:
    """Score how suspect the label of each of N samples is.

    Give class probabilities, features, or both. From features alone, probabilities are the mean of two classifiers that
    were not fitted to the sample: a cross-validated logistic regression, and a vote of its nearest neighbors. Features
    are first reduced to their principal components. If probabilities are given, the features are used for reasons and
    for scorers of neighbors.

    The score is a probability or share from 0 to 1, not a rank. Use it for sorting: it is not the probability that the
    label is wrong, and scores of two scorers are not comparable. With p the probability of the label and q that of the
    most probable other class:

    * `label_odds`: q / (p + q); above 1/2 if another class is more probable.
    * `margin`: (1 + q - p) / 2 (Northcutt et al. 2021, doi:10.1613/jair.1.12125).
    * `self_confidence`: 1 - p (same source).
    * `el2n`: length of the error of the probabilities, over its maximum (Paul et al. 2021, arXiv:2107.07075).
    * `confident_learning`: above 1/2 if cleanlab's `find_label_issues` names the sample; ordered by 1 - p within both
      halves. It needs the extra `cleanlab`.
    * `smoothed_confidence`: 1 - the mean of p and of the mean probability of the label over the neighbors.
    * `knn_agreement`: share of the neighbors with another label (Wilson 1972). It needs no probabilities.

    Results do not depend on the order of the samples, except for duplicates, whose neighbors are ambiguous. The only
    sample of a class has a score near 1, since the model that predicts it was not fitted to the class.

    Args:
        labels: (N,) integers or strings.
        pred_probs: (N, C) out-of-fold probabilities, rows summing to 1; columns as `class_names`. A UserWarning says if
            they agree with so few labels that their columns are probably in another order.
        features: (N, D) numbers, e.g. of the layer before a network's last.
        scorer: one of the above.
        fraction: fraction of the samples, 0 to 1, to flag: those with the highest scores, as close to it as ties allow.
            "estimated": the share of wrong labels that the probabilities suggest, see `WrongShare`. None flags scores
            above 1/2.
        class_names: (C,) classes in the order of the columns of `pred_probs`. None: 0 to C - 1 if all labels are
            integers in this range, else the distinct labels; in the order of the columns of a data frame that has
            these names, else in ascending order, as in scikit-learn.
        n_neighbors: number of nearest other samples, by Euclidean distance; at most N - 1.
        n_components: principal components to which more features are reduced; at most N are used.
        folds: of the cross-validation.
        progress: print progress to standard error.
        seed: of the folds, and of the interval of an estimated share.

    Returns:
        Scores, flags, reasons and suggested labels, in the order of the samples.

    Raises:
        InputError: naming the argument, the value and the fix: lengths that differ, values that are not finite, rows
            that do not sum to 1, a single class, too few samples, an unknown scorer, a missing extra.

    Example:
        >>> import numpy as np
        >>> from batchsieve import find_issues
        >>> labels = np.repeat(["cat", "dog"], 50)
        >>> features = np.random.default_rng(0).normal(size=(100, 5)) + 6 * (labels == "dog")[:, None]
        >>> labels[3] = "dog"  # a wrong label
        >>> issues = find_issues(labels, features=features)
        >>> issues
        LabelIssues(1 of 100 samples, scorer='label_odds')
        >>> issues.ranked()[0], str(issues.suggested_label[3])
        (np.int64(3), 'cat')
        >>> issues.reason[3]
        'labeled dog (...), predicted cat (...); 10 of 10 nearest ... are cat'
        >>> issues.show(1)  # in a notebook a table, or with `images` pictures
        LabelIssues(1 of 100 samples, scorer='label_odds')
        sample  label  suggested_label  score  reason
        3       dog    cat              ...
        >>> find_issues([0, 1, 1], pred_probs=[[0.9, 0.1], [0.2, 0.8], [0.9, 0.1]]).score.round(2).tolist()
        [0.1, 0.2, 0.9]
    """
    if scorer not in get_args(LabelScorer):
        raise InputError(
            f"scorer: {scorer!r} scores no labels; choose from {', '.join(get_args(LabelScorer))}, or call sieve"
        )
    if pred_probs is None and features is None:
        raise InputError("pred_probs, features: both are missing; give one of them, or both")
    if scorer in _NEIGHBOR_SCORERS and features is None:
        raise InputError(f"scorer: {scorer} needs features; give them, or take label_odds")
    checked, columns = labels_by_columns(labels, pred_probs, class_names)
    if checked.codes.min() == checked.codes.max():
        only = checked.names[checked.codes[0]]
        raise InputError(f"labels: {only} is the only class; give labels of two or more, or find outliers by sieve")
    share = None if fraction is None else checked_fraction(fraction, "fraction")
    seed = checked_seed(seed)
    n_neighbors = checked_integer(n_neighbors, "n_neighbors")
    n_components, folds = checked_integer(n_components, "n_components"), checked_integer(folds, "folds")
    log = stderr_log(None) if progress else RunLog.silent()
    n = len(checked.codes)
    probabilities = None if columns is None else checked_probabilities(columns, n)
    if probabilities is not None and (line := column_order_warning(probabilities, checked)):
        warnings.warn(line, stacklevel=2)
    order, inputs = np.arange(n), ScorerInputs(labels=checked.codes, probabilities=probabilities)
    if features is not None:
        values = checked_features(features, n)
        order = content_order(values, checked.codes)
        components = principal_components(values[order], n_components, log)
        neighbors = neighbor_rows(components, n_neighbors, key="n_neighbors", seed=seed, log=log)
        ordered = Labels(codes=checked.codes[order], classes=checked.classes)
        if probabilities is not None:
            probabilities = probabilities[order]
        elif scorer != "knn_agreement" or share == "estimated":
            probabilities = voted_probabilities(
                components, neighbors, ordered, folds=folds, seed=seed, log=log,
                fix="give more samples of each class, fewer folds, or pred_probs",
            )  # fmt: skip
        inputs = ScorerInputs(labels=ordered.codes, probabilities=probabilities, neighbors=neighbors)
    return score_labels(inputs, checked, order, scorer=scorer, share=share, n_neighbors=n_neighbors, seed=seed)


def score_labels(
    inputs: ScorerInputs,
    labels: Labels,
    order: NDArray[np.int64],
    *,
    scorer: LabelScorer,
    share: float | Literal["estimated"] | None,
    n_neighbors: int,
    seed: int,
) -> LabelIssues:
    """Return what `find_issues` does, from the inputs that it computes.

    Args:
        inputs: labels of two classes or more; with probabilities or neighbors, as the scorer needs them.
        labels: of the N samples.
        order: (N,) the sample of each row of `inputs`.
        share, n_neighbors: `fraction` and `n_neighbors` of `find_issues`.
        seed: of the interval of an estimated share.

    Raises:
        InputError: a missing extra.
    """
    score = _score(inputs, scorer, n_neighbors)
    estimate = None
    if share == "estimated":
        assert inputs.probabilities is not None
        estimate = estimate_wrong_share(inputs.labels, inputs.probabilities, seed=seed)
        share = estimate.extrapolated.share
    threshold = 0.5 if share is None else threshold_for_share(score, share).value
    inverse = np.argsort(order)
    suggestion = suggest_labels(inputs)
    assert suggestion is not None, "there are two classes, and probabilities or neighbors"
    return LabelIssues(
        score=score[inverse],
        is_issue=score[inverse] > threshold,
        reason=np.array(_reasons(inputs, labels.names, suggestion), dtype=object)[inverse],
        label=labels.classes[labels.codes],
        suggested_label=labels.classes[suggestion.labels[inverse]],
        suggested_probability=suggestion.probabilities[inverse],
        scorer=scorer,
        threshold=threshold,
        wrong_share=estimate,
    )


def _score(inputs: ScorerInputs, scorer: str, n_neighbors: int) -> NDArray[np.float64]:
    """Return scores (N,) from 0 to 1."""
    if scorer == "label_odds":
        # NaN: without a record of the training, the scorer uses the model's probability.
        unknown = np.full(len(inputs.labels), np.nan, dtype=np.float32)
        odds = SCORERS[scorer].values(
            ScorerInputs(labels=inputs.labels, probabilities=inputs.probabilities, training_confidence=unknown)
        )
        return np.asarray(odds / (1 + odds))
    options = {"k": n_neighbors} if scorer in _NEIGHBOR_SCORERS else {}
    try:
        return np.asarray(SCORERS[scorer].values(inputs, **options))
    except InputError as error:  # a missing extra, which names the key of params.yaml
        raise InputError(str(error).removeprefix("filter.")) from None


def _reasons(inputs: ScorerInputs, names: Sequence[str], suggestion: SuggestedLabels) -> list[str]:
    """Return reasons, e.g. "labeled cat (3.1 %), predicted dog (91.0 %); 9 of 10 nearest neighbors are dog"."""
    parts = []
    if inputs.probabilities is not None:
        label_share = inputs.probabilities[np.arange(len(inputs.labels)), inputs.labels].tolist()
        predicted, predicted_share = suggestion.labels.tolist(), suggestion.probabilities.tolist()
        parts.append(
            [
                f"labeled {names[label]} ({100 * share:.1f} %), predicted {names[guess]} ({100 * highest:.1f} %)"
                if label != guess
                else f"labeled and predicted {names[label]} ({100 * share:.1f} %)"
                for label, share, guess, highest in zip(
                    inputs.labels.tolist(), label_share, predicted, predicted_share, strict=True
                )
            ]
        )
    if inputs.neighbors is not None:
        parts.append(neighbor_phrases(inputs.neighbors, inputs.labels, names))
    return ["; ".join(phrases) for phrases in zip(*parts, strict=True)]
