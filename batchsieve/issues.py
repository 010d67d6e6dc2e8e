"""Find probably wrong labels: `find_issues` on labels with class probabilities, features, or both."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsieve.arrays import (
    Labels,
    checked_features,
    checked_labels,
    checked_probabilities,
    checked_share,
    probability_columns,
)
from batchsieve.evidence import N_COMPONENTS, components_of, content_order, neighbors_of, voted_probabilities
from pipeline.errors import InputError
from pipeline.scoring.base import ScorerInputs, neighbor_phrases
from pipeline.scoring.registry import SCORERS
from pipeline.scoring.thresholds import threshold_for_share

if TYPE_CHECKING:
    import pandas as pd

LabelScorer = Literal[
    "label_odds", "margin", "self_confidence", "el2n", "confident_learning", "smoothed_confidence", "knn_agreement"
]
"""Scorers of `find_issues`. The last two need features, the others class probabilities, given or estimated."""

_NEIGHBOR_SCORERS = ("smoothed_confidence", "knn_agreement")
_SHOWN = 5  # rows in a notebook


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LabelIssues:
    """Result of `find_issues` for N samples, in their order.

    Attributes:
        score: (N,) float64, 0 to 1; higher is more suspect. Its meaning is the scorer's, see `find_issues`.
        is_issue: (N,) bool, whether the score is above the threshold.
        reason: (N,) str, the evidence in words, for all samples.
        label: (N,) the labels as given.
        suggested_label: (N,) the most probable class, in the type of the labels; None without probabilities.
        scorer: name of the scorer.
        threshold: of the score.
    """

    score: NDArray[np.float64]
    is_issue: NDArray[np.bool_]
    reason: NDArray[np.object_]
    label: NDArray[Any]
    suggested_label: NDArray[Any] | None
    scorer: str
    threshold: float

    def __post_init__(self) -> None:
        for array in (self.score, self.is_issue, self.reason, self.label, self.suggested_label):
            if array is not None:
                array.flags.writeable = False

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.score)

    def ranked(self) -> NDArray[np.int64]:
        """(N,) positions of the samples, the most suspect first; of equal scores the first sample first."""
        return np.argsort(-self.score, kind="stable")

    def columns(self) -> dict[str, NDArray[Any]]:
        """label, score, is_issue, suggested_label (where there are probabilities) and reason, in the samples' order."""
        suggested = {} if self.suggested_label is None else {"suggested_label": self.suggested_label}
        return {
            "label": self.label,
            "score": self.score,
            "is_issue": self.is_issue,
            **suggested,
            "reason": self.reason,
        }

    def to_pandas(self) -> "pd.DataFrame":
        """`columns` with one row for each sample, the most suspect first.

        The index, named `sample`, is the position in the arrays given.
        """
        import pandas as pd

        frame = pd.DataFrame(self.columns(), index=pd.RangeIndex(len(self), name="sample"))
        return frame.iloc[self.ranked()]

    def __repr__(self) -> str:
        return f"LabelIssues({int(self.is_issue.sum()):,} of {len(self):,} samples, scorer={self.scorer!r})"

    def _repr_html_(self) -> str:
        """The most suspect samples, for notebooks."""
        columns = {"sample": np.arange(len(self)), **self.columns()}
        head = "".join(f"<th>{name}</th>" for name in columns)
        rows = [
            "".join(f"<td>{html.escape(_cell(values[row]))}</td>" for values in columns.values())
            for row in self.ranked()[:_SHOWN]
        ]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{html.escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>"


def find_issues(
    labels: ArrayLike,
    pred_probs: ArrayLike | None = None,
    features: ArrayLike | None = None,
    *,
    scorer: LabelScorer = "label_odds",
    fraction: float | None = None,
    class_names: Sequence[int] | Sequence[str] | None = None,
    n_neighbors: int = 10,
    n_components: int = N_COMPONENTS,
    folds: int = 5,
    seed: int = 0,
) -> LabelIssues:
    """Score how suspect the label of each of N samples is.

    The evidence is class probabilities, features, or both. From features alone, probabilities are estimated by two
    classifiers that do not see the sample, in equal parts: a logistic regression, cross-validated, and a vote of its
    nearest neighbors. Features are reduced to their principal components before. Where probabilities are given, the
    features serve the reasons and the scorers of neighbors.

    The score is a probability or share from 0 to 1, not a rank. It is for sorting: it is not the chance that the label
    is wrong, and scores of two scorers do not compare. With p the probability of the label and q that of the most
    probable other class:

    * `label_odds`: q / (p + q); above 1/2 where another class is more probable.
    * `margin`: (1 + q - p) / 2 (Northcutt et al. 2021, doi:10.1613/jair.1.12125).
    * `self_confidence`: 1 - p (same source).
    * `el2n`: length of the error of the probabilities, over its maximum (Paul et al. 2021, arXiv:2107.07075).
    * `confident_learning`: above 1/2 where cleanlab's `find_label_issues` names the sample, within both halves by
      1 - p. It needs the extra `cleanlab`.
    * `smoothed_confidence`: 1 - the mean of p and of the mean probability of the label over the neighbors.
    * `knn_agreement`: share of the neighbors with another label (Wilson 1972). It needs no probabilities.

    Samples in another order have the same results in that order, duplicates excepted, whose neighbors are ambiguous.
    A class with one sample is unknown to the model that predicts it, so that its score is near 1.

    Args:
        labels: (N,) integers or strings.
        pred_probs: (N, C) out-of-fold probabilities, rows summing to 1; columns as `class_names`.
        features: (N, D) numbers, e.g. of the layer before a network's last.
        scorer: one of the above.
        fraction: share of the samples, 0 to 1, to flag: those of the highest scores, as near to it as ties allow. None
            flags scores above 1/2.
        class_names: (C,) classes in the order of the columns of `pred_probs`. None: where all labels are whole numbers
            from 0 to C - 1, these; else the distinct labels in ascending order, as in scikit-learn.
        n_neighbors: nearest others, by Euclidean distance; at most N - 1.
        n_components: principal components that features are reduced to where they are more; at most N are used.
        folds: of the cross-validation.
        seed: of the folds.

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
    columns = None if pred_probs is None else probability_columns(pred_probs)
    known = checked_labels(labels, n_columns=None if columns is None else columns.shape[1], class_names=class_names)
    if len(known.classes) < 2:
        raise InputError(
            f"labels: {known.names[0]} is the only class; give labels of two or more, or look for odd samples by sieve"
        )
    share = None if fraction is None else checked_share(fraction, "fraction")
    n = len(known.codes)
    probabilities = None if columns is None else checked_probabilities(columns, n)
    order, evidence = np.arange(n), ScorerInputs(labels=known.codes, probabilities=probabilities)
    if features is not None:
        values = checked_features(features, n)
        order = content_order(values, known.codes)
        components = components_of(values[order], n_components)
        neighbors = neighbors_of(components, n_neighbors, key="n_neighbors", seed=seed)
        ordered = Labels(codes=known.codes[order], classes=known.classes)
        if probabilities is not None:
            probabilities = probabilities[order]
        elif scorer != "knn_agreement":
            probabilities = voted_probabilities(components, neighbors, ordered, folds=folds, seed=seed)
        evidence = ScorerInputs(labels=ordered.codes, probabilities=probabilities, neighbors=neighbors)
    score = _score(evidence, scorer, n_neighbors)
    threshold = 0.5 if share is None else threshold_for_share(score, share).value
    back = np.argsort(order)
    predicted = None if evidence.probabilities is None else evidence.probabilities.argmax(axis=1)
    return LabelIssues(
        score=score[back],
        is_issue=score[back] > threshold,
        reason=np.array(_reasons(evidence, known.names), dtype=object)[back],
        label=known.classes[known.codes],
        suggested_label=None if predicted is None else known.classes[predicted[back]],
        scorer=scorer,
        threshold=threshold,
    )


def _score(evidence: ScorerInputs, scorer: str, n_neighbors: int) -> NDArray[np.float64]:
    """Return scores (N,) from 0 to 1."""
    if scorer == "label_odds":
        # Without a record of the training, the label's probability is that of the model alone: NaN says so.
        unknown = np.full(len(evidence.labels), np.nan, dtype=np.float32)
        odds = SCORERS[scorer].values(
            ScorerInputs(labels=evidence.labels, probabilities=evidence.probabilities, training_confidence=unknown)
        )
        return np.asarray(odds / (1 + odds))
    options = {"k": n_neighbors} if scorer in _NEIGHBOR_SCORERS else {}
    return np.asarray(SCORERS[scorer].values(evidence, **options))


def _reasons(evidence: ScorerInputs, names: Sequence[str]) -> list[str]:
    """Return reasons, e.g. "labeled cat (3.1 %), predicted dog (91.0 %); 9 of 10 nearest neighbors are dog"."""
    parts = []
    if evidence.probabilities is not None:
        predicted = evidence.probabilities.argmax(axis=1)
        of_label, highest = (
            np.take_along_axis(evidence.probabilities, chosen[:, None], axis=1)[:, 0].tolist()
            for chosen in (evidence.labels, predicted)
        )
        parts.append(
            [
                f"labeled {names[label]} ({100 * own:.1f} %), predicted {names[seen]} ({100 * most:.1f} %)"
                if label != seen
                else f"labeled and predicted {names[label]} ({100 * own:.1f} %)"
                for label, own, seen, most in zip(
                    evidence.labels.tolist(), of_label, predicted.tolist(), highest, strict=True
                )
            ]
        )
    if evidence.neighbors is not None:
        parts.append(neighbor_phrases(evidence.neighbors, evidence.labels, names))
    return ["; ".join(phrases) for phrases in zip(*parts, strict=True)]


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
