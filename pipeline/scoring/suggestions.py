"""Suggest other labels: by the probabilities of a network, or by a vote of the nearest neighbors."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.predictions import predicted_classes
from pipeline.scoring.votes import neighbor_vote

_VOTES = 10  # nearest neighbors that vote, as many as reasons and tables name


@dataclass(frozen=True, kw_only=True, eq=False)
class SuggestedLabels:
    """A suggested label for each of N images; it may be the image's label.

    Attributes:
        labels: (N,) int64 indices of classes.
        probabilities: (N,) float32, 0 to 1, of those classes; for a vote the share of the neighbors.
    """

    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]


def suggest_labels(inputs: ScorerInputs) -> SuggestedLabels | None:
    """Return the most probable class of each image; without class probabilities, that of most nearest neighbors.

    In a tie the label of the image wins. Neighbors vote with their labels, and at most ten of them do. Without both
    inputs, or with one class, return None.
    """
    if not inputs.has("classes"):
        return None
    if inputs.probabilities is not None:
        labels, probabilities = predicted_classes(inputs.labels, inputs.probabilities)
        return SuggestedLabels(labels=labels, probabilities=probabilities)
    if inputs.neighbors is None:
        return None
    neighbors = inputs.neighbors[:, :_VOTES]
    labels = neighbor_vote(neighbors, inputs.labels)
    shares = (inputs.labels[neighbors] == labels[:, None]).mean(axis=1, dtype=np.float32)
    return SuggestedLabels(labels=labels, probabilities=shares)
