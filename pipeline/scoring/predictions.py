"""Scorers that read predicted probabilities."""

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.scoring.base import ScoredImages, Scorer, ScorerInputs

# How little a network believes in an image's label (Northcutt, Jiang and Chuang, 2021, doi:10.1613/jair.1.12125).


_BLOCK_BYTES = 2**26


def row_blocks(probabilities: NDArray[np.float32]) -> list[slice]:
    """Rows of (N, C) in blocks of which a copy in double precision is small: the whole may be larger than memory."""
    size = max(1, _BLOCK_BYTES // (8 * probabilities.shape[1]))
    return [slice(start, start + size) for start in range(0, len(probabilities), size)]


def confidence(evidence: ScorerInputs) -> NDArray[np.float64]:
    """(N,): probability, 0 to 1, that the network gives to the label of each image."""
    assert evidence.probabilities is not None
    rows = np.arange(len(evidence.labels))
    return np.asarray(evidence.probabilities[rows, evidence.labels], dtype=np.float64)


def confidence_phrases(judged: ScoredImages) -> list[str]:
    """ "the network gives its label cat 3.1 %", for each image."""
    return [
        f"the network gives its label {judged.names[label]} {100 * share:.2g} %"
        for label, share in zip(judged.evidence.labels.tolist(), confidence(judged.evidence).tolist(), strict=True)
    ]


def _self_confidence_scores(evidence: ScorerInputs) -> NDArray[np.float64]:
    """1 - probability of the label."""
    # Probabilities in single precision may exceed 1 by a rounding.
    return np.clip(1 - confidence(evidence), 0, 1)


SELF_CONFIDENCE_SCORER = Scorer(
    values=_self_confidence_scores, phrases=confidence_phrases, needs=frozenset({"classes", "probabilities"})
)


# By how much a network prefers another class to an image's label (normalized margin of Northcutt et al., 2021).


def max_other_probability(evidence: ScorerInputs) -> NDArray[np.float64]:
    """(N,): probability of the most probable class that is not the label."""
    assert evidence.probabilities is not None
    strongest = np.empty(len(evidence.labels))
    for rows in row_blocks(evidence.probabilities):
        others = np.array(evidence.probabilities[rows], dtype=np.float64)
        others[np.arange(len(others)), evidence.labels[rows]] = -np.inf
        strongest[rows] = others.max(axis=1)
    return strongest


def _margin_scores(evidence: ScorerInputs) -> NDArray[np.float64]:
    """(1 + probability of the strongest other class - probability of the label) / 2: 0 to 1."""
    return np.asarray(np.clip((1 + max_other_probability(evidence) - confidence(evidence)) / 2, 0, 1))


def _margin_reasons(judged: ScoredImages) -> list[str]:
    return [
        f"{belief}, its strongest other class {100 * (2 * value - 1):+.2g} points more"
        for belief, value in zip(confidence_phrases(judged), judged.values.tolist(), strict=True)
    ]


MARGIN_SCORER = Scorer(values=_margin_scores, phrases=_margin_reasons, needs=frozenset({"classes", "probabilities"}))


# The length of a network's error on an image (EL2N; Paul, Ganguli and Dziugaite, 2021, arXiv:2107.07075).
#
# The paper takes the mean over several networks early in training. Here it is of the probabilities
# that the extractor wrote at the end of fine-tuning, out-of-fold with `finetune.folds`.


def _el2n_scores(evidence: ScorerInputs) -> NDArray[np.float64]:
    """|p - y| / sqrt(2), 0 to 1, of the probabilities p and the label as a unit vector y."""
    assert evidence.probabilities is not None
    squares = np.empty(len(evidence.labels))
    for rows in row_blocks(evidence.probabilities):
        errors = np.array(evidence.probabilities[rows], dtype=np.float64)
        errors[np.arange(len(errors)), evidence.labels[rows]] -= 1
        squares[rows] = (errors**2).sum(axis=1)
    return np.sqrt(squares / 2)


def _el2n_reasons(judged: ScoredImages) -> list[str]:
    return [
        f"{belief}, an error of length {value:.2f} of 1"
        for belief, value in zip(confidence_phrases(judged), judged.values.tolist(), strict=True)
    ]


EL2N_SCORER = Scorer(values=_el2n_scores, phrases=_el2n_reasons, needs=frozenset({"classes", "probabilities"}))


# How little a network believed in an image's label while it trained.
#
# The mean over the training (confidence in Swayamdipta et al., 2020, Dataset Cartography, section 2.1)
# remembers the doubts of epochs before the network had learned a wrong label by heart.


def confidence_in_training(evidence: ScorerInputs) -> NDArray[np.float64]:
    """(N,): mean probability, 0 to 1, of the label late in training.

    An image that no pass of training met, in a run of less than an epoch, has the trained network's.
    """
    assert evidence.training_confidence is not None
    found = np.asarray(evidence.training_confidence, dtype=np.float64)
    return np.where(np.isnan(found), confidence(evidence), found)


def training_phrases(judged: ScoredImages) -> list[str]:
    """ "while it trained, the network gave its label cat 3.1 %", for each image."""
    return [
        f"while it trained, the network gave its label {judged.names[label]} {100 * share:.2g} %"
        for label, share in zip(
            judged.evidence.labels.tolist(), confidence_in_training(judged.evidence).tolist(), strict=True
        )
    ]


def _mean_confidence_scores(evidence: ScorerInputs) -> NDArray[np.float64]:
    """1 - mean probability of the label in training."""
    return np.asarray(np.clip(1 - confidence_in_training(evidence), 0, 1))


MEAN_CONFIDENCE_SCORER = Scorer(
    values=_mean_confidence_scores,
    phrases=training_phrases,
    needs=frozenset({"classes", "probabilities", "training_confidence"}),
)


# How many times more probable than an image's label its strongest other class is.
#
# A wrong label of a clear image leaves another class far ahead, and so does the wrong label of an image
# between two classes, which self-confidence takes for merely hard. The label's probability is the mean
# of the trained network's and of its mean in training, which has not learned wrong labels by heart.


# Of probabilities in single precision nothing smaller is known; a quotient of it is still finite.
_LEAST = 1e-7


def _label_odds_scores(evidence: ScorerInputs) -> NDArray[np.float64]:
    """Probability of the strongest other class over that of the label: 0 to 1e7."""
    label = (confidence(evidence) + confidence_in_training(evidence)) / 2
    return np.asarray(max_other_probability(evidence) / np.maximum(label, _LEAST))


def _label_odds_reasons(judged: ScoredImages) -> list[str]:
    return [
        f"another class is {value:.2g} times as probable as its label {judged.names[label]}"
        for label, value in zip(judged.evidence.labels.tolist(), judged.values.tolist(), strict=True)
    ]


LABEL_ODDS_SCORER = Scorer(
    values=_label_odds_scores,
    phrases=_label_odds_reasons,
    needs=frozenset({"classes", "probabilities", "training_confidence"}),
)


# How little a network believes in an image's label, over the image and its nearest neighbours.
#
# One image may fool the network; its neighbours by features seldom do so in the same way. Unlike a
# vote of neighbours it counts what the network sees in them, not the labels they bear, which may be
# wrong as well, and it has no ties.


_ROWS = 8192


def neighbor_confidence(evidence: ScorerInputs, k: int) -> NDArray[np.float64]:
    """(N,): mean probability, 0 to 1, of the image's label over its `k` nearest others."""
    assert evidence.probabilities is not None
    assert evidence.neighbours is not None
    nearest = evidence.neighbours[:, :k]
    assert nearest.shape[1] == k, (nearest.shape, k)
    means = np.empty(len(nearest))
    # Block by block, since probabilities of large data are mapped from their file.
    for start in range(0, len(nearest), _ROWS):
        rows = slice(start, start + _ROWS)
        means[rows] = evidence.probabilities[nearest[rows], evidence.labels[rows, None]].mean(axis=1, dtype=np.float64)
    return means


def _smoothed_confidence_scores(evidence: ScorerInputs, *, k: int) -> NDArray[np.float64]:
    """1 - the mean of the probability of the label and of its mean over the `k` nearest others."""
    return np.asarray(np.clip(1 - (confidence(evidence) + neighbor_confidence(evidence, k)) / 2, 0, 1))


def _smoothed_confidence_reasons(judged: ScoredImages) -> list[str]:
    k = judged.options["k"]
    around = neighbor_confidence(judged.evidence, k).tolist()
    return [
        f"{belief}, on average over its {k} nearest {100 * share:.2g} %"
        for belief, share in zip(confidence_phrases(judged), around, strict=True)
    ]


SMOOTHED_CONFIDENCE_SCORER = Scorer(
    values=_smoothed_confidence_scores,
    phrases=_smoothed_confidence_reasons,
    needs=frozenset({"classes", "neighbours", "probabilities"}),
)


# Confident learning (Northcutt, Jiang and Chuang, 2021, doi:10.1613/jair.1.12125), by cleanlab.


_EDGE = 1e-9


def _confident_learning_scores(evidence: ScorerInputs) -> NDArray[np.float64]:
    """1/2 to 1 for images that `find_label_issues` names, 0 to 1/2 for others, by 1 - probability of the label.

    A threshold of 1/2 is cleanlab's own decision (`prune_by_noise_rate`).
    """
    try:
        # An optional extra: the other scorers work without it.
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise InputError(
            "filter.scorer: confident_learning needs cleanlab; pip install -e '.[cleanlab]', or take self_confidence"
        ) from None
    probabilities = np.asarray(evidence.probabilities, dtype=np.float64)
    # Classes of a single image may be named too; whether a class may be emptied is decided later.
    named = find_label_issues(evidence.labels, probabilities, n_jobs=1, min_examples_per_class=0)
    # Inside the two halves, so that none meets the boundary.
    doubt = np.clip(1 - confidence(evidence), _EDGE, 1 - _EDGE)
    return np.asarray((named + doubt) / 2, dtype=np.float64)


def _confident_learning_reasons(judged: ScoredImages) -> list[str]:
    return [
        f"{belief}; confident learning {'names' if value > 0.5 else 'does not name'} it"
        for belief, value in zip(confidence_phrases(judged), judged.values.tolist(), strict=True)
    ]


CONFIDENT_LEARNING_SCORER = Scorer(
    values=_confident_learning_scores,
    phrases=_confident_learning_reasons,
    needs=frozenset({"classes", "probabilities"}),
)
