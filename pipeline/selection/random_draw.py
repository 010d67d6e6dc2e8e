"""Chance, as a control."""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.evidence import Evidence, Judged, Scorer


def _values(evidence: Evidence, *, seed: int) -> NDArray[np.float64]:
    """Uniform between 0 and 1."""
    return np.random.default_rng(seed).random(len(evidence.labels))


def _phrases(judged: Judged) -> list[str]:
    seed = judged.options["seed"]
    return [
        f"{'dropped' if value > threshold else 'kept'} by chance (seed {seed})" for value, threshold in judged.pairs
    ]


SCORER = Scorer(values=_values, phrases=_phrases)
