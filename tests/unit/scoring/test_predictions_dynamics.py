"""Scorers by training dynamics: their values, their direction, and images that training did not use."""

import numpy as np

from pipeline.scoring.base import ScoredImages, ScorerInputs
from pipeline.scoring.registry import SCORERS

_INPUTS = ScorerInputs(
    labels=np.array([0, 1, 0, 1]),
    probabilities=np.array([[0.6, 0.4], [0.6, 0.4], [0.2, 0.8], [0.2, 0.8]], dtype=np.float32),
    training_margin=np.array([2, -0.5, np.nan, np.nan], dtype=np.float32),
    training_forgetting=np.array([0, 1, np.nan, np.nan], dtype=np.float32),
)


def _reasons(name: str, inputs: ScorerInputs = _INPUTS) -> list[str]:
    values = SCORERS[name].values(inputs)
    names = ["cat", "dog"]
    scored = ScoredImages(inputs=inputs, options={}, values=values, thresholds=np.ones(4), class_names=names)
    return SCORERS[name].reasons(scored)


def test_aum_is_the_odds_against_the_label_by_its_mean_margin() -> None:
    """Without a record they are the trained network's: the difference of logits is that of logarithms."""
    expected = [np.exp(-2), np.exp(0.5), 0.8 / 0.2, 0.2 / 0.8]
    np.testing.assert_allclose(SCORERS["aum"].values(_INPUTS), expected, rtol=1e-6)
    above, below = _reasons("aum")[:2]
    assert above == "on average over training, the logit of its label cat was 2 above the largest other one"
    assert below == "on average over training, the logit of its label dog was 0.5 below the largest other one"


def test_margins_far_from_zero_keep_their_order() -> None:
    margin = np.array([-300, -299, 299, 300], dtype=np.float32)
    values = SCORERS["aum"].values(ScorerInputs(**{**vars(_INPUTS), "training_margin": margin}))
    assert (np.diff(values) < -1e-9 * values[1:]).all()


def test_forgetting_counts_events_and_never_learned_is_the_most() -> None:
    np.testing.assert_array_equal(SCORERS["forgetting"].values(_INPUTS), [0, 1, np.inf, 0])
    assert _reasons("forgetting") == [
        "while it trained, the network forgot its label cat only 0 times",
        "while it trained, the network forgot its label dog only once",
        "while it trained, the network never learned its label cat",
        "while it trained, the network forgot its label dog only 0 times",
    ]
