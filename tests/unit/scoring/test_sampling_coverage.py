"""Coverage-centric selection: what is kept at any share."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.decision import DropFraction, decide
from pipeline.scoring.registry import check_scorer
from pipeline.scoring.sampling import dropping_order

_N, _BINS = 1000, 10


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    beta=st.sampled_from([0.0, 0.1, 0.3]),
    share=st.sampled_from([0.3, 0.5, 0.9]),
)
def test_strata_keep_equal_numbers_without_the_hardest(seed: int, beta: float, share: float) -> None:
    difficulty = np.random.default_rng(seed).beta(2, 5, size=_N)
    values = dropping_order(difficulty, beta, _BINS, seed)
    kept = np.argsort(values, kind="stable")[: round((1 - share) * _N)]
    easier = np.sort(difficulty)[: _N - round(beta * _N)]
    assert difficulty[kept].max() <= easier.max()
    edges = np.linspace(easier.min(), easier.max(), _BINS + 1)
    available, taken = (np.histogram(part, edges)[0] for part in (easier, difficulty[kept]))
    # A stratum keeps the common number, give or take the image that makes the sum fit, or all that it has.
    level = taken.max()
    assert ((taken >= level - 1) | (taken == available)).all()


def test_a_larger_budget_includes_a_smaller_one_of_the_same_seed() -> None:
    inputs = ScorerInputs(labels=np.arange(_N) % 2, probabilities=_probabilities())
    scorer: dict[str, Any] = {"name": "ccs", "scorer": {"name": "margin"}, "beta": 0.1, "bins": _BINS, "seed": 0}
    small, large = (decide(inputs, scorer, DropFraction(fraction=share)).is_noise for share in (0.9, 0.3))
    assert (small.sum(), large.sum()) == (900, 300)
    assert (small | ~large).all()
    other = decide(inputs, scorer | {"seed": 1}, DropFraction(fraction=0.9)).is_noise
    assert (small != other).any()


def _probabilities() -> np.ndarray:
    sure = np.random.default_rng(0).random(_N).astype(np.float32)
    return np.column_stack([sure, 1 - sure])


@pytest.mark.parametrize("difficulty", [np.zeros(20), np.full(20, np.inf), np.r_[np.inf, np.arange(19)]])
def test_equal_and_infinite_difficulties_are_ordered(difficulty: np.ndarray) -> None:
    values = dropping_order(difficulty, 0.1, 5, 0)
    assert np.isfinite(values).all()
    assert len(np.unique(values)) == 20
    assert (values > 1).sum() == 2
    assert np.isfinite(difficulty).all() or values[np.isinf(difficulty)].max() == values.max() == 2


@pytest.mark.parametrize(
    ("inner", "key"),
    [({"name": "margin"}, "filter.scorer.scorer"), ({"name": "knn_agreement", "k": 5}, "filter.scorer.scorer")],
)
def test_a_scorer_that_lacks_its_input_is_named(inner: Mapping[str, Any], key: str) -> None:
    inputs = ScorerInputs(labels=np.arange(8) % 2)
    with pytest.raises(InputError) as refused:
        check_scorer(
            inputs, {"name": "ccs", "scorer": inner, "beta": 0.1, "bins": 5, "seed": 0}, ["a", "b"], "filter.scorer"
        )
    assert refused.value.key == key
