"""What every registered scorer promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from pipeline.config.filter import FilterConfig
from pipeline.selection.evidence import Evidence
from pipeline.selection.scorers import SCORERS

_ALL = pytest.mark.parametrize("name", list(SCORERS))


def _planted(seed: int) -> tuple[Evidence, np.ndarray]:
    """Two classes of two blobs each, with 5 % of each class thrown anywhere on the map."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 1], 200)
    centres = np.array([[[0, 0], [20, 0]], [[0, 20], [20, 20]]], dtype=float)
    coordinates = centres[labels, rng.integers(0, 2, size=400)] + rng.normal(size=(400, 2))
    planted = np.arange(400) % 20 == 0
    coordinates[planted] = rng.uniform(-5, 25, size=(planted.sum(), 2))
    return Evidence(coordinates=coordinates, labels=labels), planted


def test_the_parameter_names_the_registry() -> None:
    names = FilterConfig.model_json_schema()["properties"]["method"]
    assert set(names.get("enum", [names.get("const")])) == set(SCORERS)


@_ALL
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_planted_outliers_are_found_far_above_chance(name: str, seed: int) -> None:
    evidence, planted = _planted(seed)
    assert roc_auc_score(planted, SCORERS[name](evidence, min_samples=5)) > 0.85


@_ALL
def test_suspicion_is_not_negative_and_repeats(name: str) -> None:
    evidence, _ = _planted(0)
    first, second = (SCORERS[name](evidence, min_samples=5) for _ in range(2))
    assert first.shape == evidence.labels.shape
    assert first.dtype == np.float64
    assert (first >= 0).all()
    assert first.tobytes() == second.tobytes()


@_ALL
def test_the_order_of_the_rows_is_of_no_effect(name: str) -> None:
    evidence, _ = _planted(0)
    order = np.random.default_rng(1).permutation(len(evidence.labels))
    shuffled = Evidence(coordinates=evidence.coordinates[order], labels=evidence.labels[order])
    values = SCORERS[name](evidence, min_samples=5)
    np.testing.assert_allclose(SCORERS[name](shuffled, min_samples=5), values[order], rtol=1e-12)
