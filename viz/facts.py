"""From points and a verdict to what colours tell."""

import numpy as np

from viz.coloring import Facts
from viz.data import Points
from viz.rules import Verdict


def facts_of(points: Points, verdict: Verdict) -> Facts:
    """What the map can show of each image; clusters are those that the filter has written."""
    by_hand = np.zeros(len(points), dtype=np.bool_)
    by_hand[list(verdict.by_hand)] = True
    return Facts(
        labels=points.labels,
        predicted=points.predicted,
        neighbours=points.neighbours,
        clusters=points.clusters,
        keep=verdict.keep,
        noise=verdict.noise,
        by_hand=by_hand,
        scores=verdict.scores,
        class_names=points.class_names,
    )
