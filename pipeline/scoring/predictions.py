"""Scorers by predicted probabilities, as in cleanlab: how the network saw each label.

`confidence` and the margin follow Northcutt, Jiang and Chuang (2021, doi:10.1613/jair.1.12125).
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.scoring.base import ScoredImages, Scorer, ScorerInputs

_BLOCK_BYTES = 2**26
_NEIGHBOR_ROWS = 8192
# Smallest denominator in ratios of probabilities: about the resolution of float32 at 1. Ratios are 1e7 at most.
MIN_PROBABILITY = 1e-7
# Keeps confident-learning values inside their half, off the threshold of 1/2.
_EDGE = 1e-9
# Odds above this share of their upper bound may have been limited: their denominator was.
_NEAR_LIMIT = 1e-3


def row_slices(probabilities: NDArray[np.float32]) -> list[slice]:
    """Return blocks of rows of (N, C) whose float64 copy is small: the array may be larger than memory."""
    size = max(1, _BLOCK_BYTES // (8 * probabilities.shape[1]))
    return [slice(start, start + size) for start in range(0, len(probabilities), size)]


def predicted_classes(
    labels: NDArray[np.int64], probabilities: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the most probable class (N,) int64 of each image, and its probability (N,); in a tie the label wins.

    Args:
        labels: (N,), 0 to C - 1.
        probabilities: (N, C); may be memory-mapped.
    """
    predicted, highest = np.empty(len(labels), dtype=np.int64), np.empty(len(labels), dtype=np.float32)
    for rows in row_slices(probabilities):
        block, own = np.asarray(probabilities[rows]), labels[rows]
        highest[rows] = block.max(axis=1)
        is_label = block[np.arange(len(block)), own] == block.max(axis=1)
        predicted[rows] = np.where(is_label, own, block.argmax(axis=1))
    return predicted, highest


def confidence(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return the network's probability (N,), 0 to 1, of each image's label."""
    assert inputs.probabilities is not None
    rows = np.arange(len(inputs.labels))
    return np.asarray(inputs.probabilities[rows, inputs.labels], dtype=np.float64)


def confidence_phrases(scored: ScoredImages) -> list[str]:
    """Return for each image "the network gives its label cat 81 %", for a dropped one "only 3.1 %"."""
    return _label_phrases(scored, "the network gives its label", confidence(scored.inputs))


def _label_phrases(scored: ScoredImages, beginning: str, shares: NDArray[np.float64]) -> list[str]:
    """Return for each image the beginning, its label, and the label's share (N,) in percent."""
    return [
        f"{beginning} {scored.class_names[label]} {'only ' * (dropped and percent >= 0.01)}{_two_digits(percent)} %"
        for label, percent, dropped in zip(
            scored.inputs.labels.tolist(), (100 * shares).tolist(), scored.dropped, strict=True
        )
    ]


def _two_digits(value: float) -> str:
    """Format 0 to 100 with two significant digits: 100 as `100`, and a number just above 0 as `less than 0.01`."""
    if 0 < abs(value) < 0.01:
        return "less than 0.01"
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.2g}"


def _self_confidence_values(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return 1 - probability of the label (N,), 0 to 1."""
    # Probabilities in single precision may exceed 1 by a rounding error.
    return np.clip(1 - confidence(inputs), 0, 1)


SELF_CONFIDENCE_SCORER = Scorer(
    values=_self_confidence_values, reasons=confidence_phrases, needs=frozenset({"classes", "probabilities"})
)


def max_other_probability(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return the probability (N,) of the most probable class that is not the label."""
    assert inputs.probabilities is not None
    strongest = np.empty(len(inputs.labels))
    for rows in row_slices(inputs.probabilities):
        others = np.array(inputs.probabilities[rows], dtype=np.float64)
        others[np.arange(len(others)), inputs.labels[rows]] = -np.inf
        strongest[rows] = others.max(axis=1)
    return strongest


def _margin_values(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return (1 + probability of the strongest other class - probability of the label) / 2: (N,), 0 to 1.

    The normalized margin of Northcutt et al. (2021), reversed so that higher is more suspect.
    """
    return np.asarray(np.clip((1 + max_other_probability(inputs) - confidence(inputs)) / 2, 0, 1))


def _margin_reasons(scored: ScoredImages) -> list[str]:
    return [
        f"{belief}, its strongest other class {_two_digits(100 * abs(2 * value - 1))} points "
        f"{'more' if value >= 0.5 else 'less'}"
        for belief, value in zip(confidence_phrases(scored), scored.values.tolist(), strict=True)
    ]


MARGIN_SCORER = Scorer(values=_margin_values, reasons=_margin_reasons, needs=frozenset({"classes", "probabilities"}))


def _el2n_values(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return |p - y| / sqrt(2) (N,), 0 to 1, of the probabilities p and the one-hot label y.

    EL2N (Paul, Ganguli and Dziugaite, 2021, arXiv:2107.07075). The paper takes the mean over several
    networks early in training. Here the probabilities are those that the extractor wrote at the end of
    fine-tuning, out-of-fold with `finetune.folds`.
    """
    assert inputs.probabilities is not None
    squares = np.empty(len(inputs.labels))
    for rows in row_slices(inputs.probabilities):
        errors = np.array(inputs.probabilities[rows], dtype=np.float64)
        errors[np.arange(len(errors)), inputs.labels[rows]] -= 1
        squares[rows] = (errors**2).sum(axis=1)
    return np.sqrt(squares / 2)


def _el2n_reasons(scored: ScoredImages) -> list[str]:
    return [
        f"{belief}, an error of length {value:.2f} of 1"
        for belief, value in zip(confidence_phrases(scored), scored.values.tolist(), strict=True)
    ]


EL2N_SCORER = Scorer(values=_el2n_values, reasons=_el2n_reasons, needs=frozenset({"classes", "probabilities"}))


def confidence_in_training(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return the mean probability (N,), 0 to 1, of the label late in training, see `ScorerInputs`.

    Swayamdipta et al. (2020, Dataset Cartography, section 2.1) call the mean over all epochs confidence. An image that
    training did not use, in a run of less than an epoch, has the trained network's probability.
    """
    assert inputs.training_confidence is not None
    mean = np.asarray(inputs.training_confidence, dtype=np.float64)
    return np.where(np.isnan(mean), confidence(inputs), mean)


def training_phrases(scored: ScoredImages) -> list[str]:
    """Return for each image "while it trained, the network gave its label cat 81 %", for a dropped one "only 3.1 %"."""
    return _label_phrases(scored, "while it trained, the network gave its label", confidence_in_training(scored.inputs))


def _mean_confidence_values(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return 1 - mean probability of the label in training (N,), 0 to 1."""
    return np.asarray(np.clip(1 - confidence_in_training(inputs), 0, 1))


MEAN_CONFIDENCE_SCORER = Scorer(
    values=_mean_confidence_values,
    reasons=training_phrases,
    needs=frozenset({"classes", "probabilities", "training_confidence"}),
)


def _label_odds_values(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return the probability of the strongest other class over that of the label (N,): 0 to 1e7.

    If the label is wrong, another class is far more probable, for a clear image and for one between two classes.
    Self-confidence does not separate the latter from hard images with a correct label. Without folds, the label's
    probability is the mean of two: that of the trained network, and the mean late in training. With folds, all
    probabilities are those of the network that did not train on the image.
    """
    label = confidence(inputs)
    if inputs.folds is None:
        label = (label + confidence_in_training(inputs)) / 2
    return np.asarray(max_other_probability(inputs) / np.maximum(label, MIN_PROBABILITY))


def _label_odds_reasons(scored: ScoredImages) -> list[str]:
    return [
        _odds_phrase(value, scored.class_names[label], dropped=dropped)
        for label, value, dropped in zip(
            scored.inputs.labels.tolist(), scored.values.tolist(), scored.dropped, strict=True
        )
    ]


def _odds_phrase(odds: float, label: str, *, dropped: bool) -> str:
    """Say which is how many times as probable, with "only" where that is against the label's side of the decision."""
    first, second = ("another class", f"its label {label}")[:: 1 if odds >= 1 else -1]
    only = "only " * (dropped == (odds < 1))
    times = odds if odds >= 1 else 1 / max(odds, MIN_PROBABILITY)
    number = f"{times:.2g}" if times < 99.5 else f"{times:,.0f}"
    if number == "1":
        return f"{first} is {only}about as probable as {second}"
    if times * MIN_PROBABILITY > _NEAR_LIMIT:
        number = f"at least {number}"
    return f"{first} is {only}{number} times as probable as {second}"


LABEL_ODDS_SCORER = Scorer(
    values=_label_odds_values,
    reasons=_label_odds_reasons,
    needs=frozenset({"classes", "probabilities"}),
    needs_without_folds=frozenset({"training_confidence"}),
)


def neighbor_confidence(inputs: ScorerInputs, k: int) -> NDArray[np.float64]:
    """Return the mean probability (N,), 0 to 1, of an image's label over its `k` nearest neighbors.

    The network may be wrong about one image, but it is rarely wrong about its neighbors in the same way. Unlike a vote
    of neighbors, the mean uses predictions, not the neighbors' labels, which may be wrong as well; and it has no ties.
    """
    assert inputs.probabilities is not None
    assert inputs.neighbors is not None
    nearest = inputs.neighbors[:, :k]
    assert nearest.shape[1] == k, (nearest.shape, k)
    means = np.empty(len(nearest))
    # In blocks: probabilities of large data sets are memory-mapped.
    for start in range(0, len(nearest), _NEIGHBOR_ROWS):
        rows = slice(start, start + _NEIGHBOR_ROWS)
        means[rows] = inputs.probabilities[nearest[rows], inputs.labels[rows, None]].mean(axis=1, dtype=np.float64)
    return means


def _smoothed_confidence_values(inputs: ScorerInputs, *, k: int) -> NDArray[np.float64]:
    """Return 1 - the mean of the label's probability and of its mean over the `k` nearest neighbors (N,), 0 to 1."""
    return np.asarray(np.clip(1 - (confidence(inputs) + neighbor_confidence(inputs, k)) / 2, 0, 1))


def _smoothed_confidence_reasons(scored: ScoredImages) -> list[str]:
    k = scored.options["k"]
    around = neighbor_confidence(scored.inputs, k).tolist()
    return [
        f"{belief}, on average over its {k} nearest {_two_digits(100 * share)} %"
        for belief, share in zip(confidence_phrases(scored), around, strict=True)
    ]


SMOOTHED_CONFIDENCE_SCORER = Scorer(
    values=_smoothed_confidence_values,
    reasons=_smoothed_confidence_reasons,
    needs=frozenset({"classes", "neighbors", "probabilities"}),
)


def _confident_learning_values(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return 1/2 to 1 for images that cleanlab names, 0 to 1/2 for others, by 1 - probability of the label (N,).

    Confident learning (Northcutt, Jiang and Chuang, 2021). A threshold of 1/2 is the decision of cleanlab's
    `find_label_issues` (`prune_by_noise_rate`).

    Raises:
        InputError: cleanlab is not installed.
    """
    try:
        # An optional extra: the other scorers work without it.
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise InputError(
            "filter.scorer: confident_learning needs cleanlab; pip install cleanlab, or take self_confidence"
        ) from None
    probabilities = np.asarray(inputs.probabilities, dtype=np.float64)
    # Classes of a single image may be named too; a later check refuses to empty a class.
    named = find_label_issues(inputs.labels, probabilities, n_jobs=1, min_examples_per_class=0)
    doubt = np.clip(1 - confidence(inputs), _EDGE, 1 - _EDGE)
    return np.asarray((named + doubt) / 2, dtype=np.float64)


def _confident_learning_reasons(scored: ScoredImages) -> list[str]:
    phrases = []
    for belief, value, dropped in zip(confidence_phrases(scored), scored.values.tolist(), scored.dropped, strict=True):
        named = value > 0.5
        but = "" if named == dropped else f", but {'more' if dropped else 'fewer'} images are to be dropped"
        phrases.append(f"{belief}; confident learning {'names' if named else 'does not name'} it{but}")
    return phrases


CONFIDENT_LEARNING_SCORER = Scorer(
    values=_confident_learning_values,
    reasons=_confident_learning_reasons,
    needs=frozenset({"classes", "probabilities"}),
)
