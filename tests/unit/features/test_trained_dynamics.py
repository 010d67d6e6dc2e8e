"""Dynamics of an extractor of several networks: means over those that trained on each image."""

from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.features.trained import TrainedExtractor, mean_dynamics
from pipeline.training.dynamics import TrainingDynamics
from tests.fixtures.training import TINY

_NAN, _INF = np.nan, np.inf
_MODEL: Any = None


def _trained(margin: list[float], forgetting: list[float] | None) -> TrainedExtractor:
    """A network that was trained for 8 epochs."""
    dynamics = None
    if forgetting is not None:
        arrays = (np.array(values, dtype=np.float32) for values in (margin, forgetting))
        dynamics = TrainingDynamics(**dict(zip(("margin", "forgetting"), arrays, strict=True)))
    return TrainedExtractor(
        model=_MODEL, settings=replace(TINY, steps=8, batch_size=20), n_train=20, train_loss=0.0,
        confidence=np.zeros(len(margin), dtype=np.float32), dynamics=dynamics,
    )  # fmt: skip


def test_a_label_that_one_network_never_learned_counts_its_epochs() -> None:
    networks = [
        _trained([1, 1, _NAN, -1, _NAN], [1, _INF, _NAN, _INF, _NAN]),
        _trained([2, _NAN, 3, -3, _NAN], [2, _NAN, 0, _INF, _NAN]),
        _trained([_NAN, -2, 5, -5, _NAN], [_NAN, 1, 3, _INF, _NAN]),
    ]
    mean = mean_dynamics(networks)
    assert mean is not None
    np.testing.assert_array_equal(mean.margin, [1.5, -0.5, 4, -3, _NAN])
    np.testing.assert_array_equal(mean.forgetting, [1.5, (8 + 1) / 2, 1.5, _INF, _NAN])


def test_one_network_keeps_its_own() -> None:
    mean = mean_dynamics([_trained([1, _NAN, -1], [0, _NAN, _INF])])
    assert mean is not None
    np.testing.assert_array_equal(mean.margin, [1, _NAN, -1])
    np.testing.assert_array_equal(mean.forgetting, [0, _NAN, _INF])


def test_without_those_of_every_network_there_are_none() -> None:
    assert mean_dynamics([_trained([1, _NAN], [0, _NAN]), _trained([_NAN, 1], None)]) is None
