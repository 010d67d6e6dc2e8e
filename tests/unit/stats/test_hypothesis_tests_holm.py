import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stats.hypothesis_tests import holm

p_values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def _rejected(given: list[float], alpha: float) -> set[int]:
    """Holm's procedure as he wrote it: from the smallest p on, until one is not below its bound."""
    found = set()
    for k, i in enumerate(sorted(range(len(given)), key=given.__getitem__)):
        if given[i] > alpha / (len(given) - k):
            break
        found.add(i)
    return found


@given(p_values, st.floats(0.001, 0.5))
def test_adjusted_values_reject_what_the_stepwise_form_rejects(given: list[float], alpha: float) -> None:
    adjusted = holm(given)
    if np.abs(adjusted - alpha).min() > 1e-9:
        assert set(np.flatnonzero(adjusted <= alpha)) == _rejected(given, alpha)


@given(p_values)
def test_adjusted_values_keep_order_between_p_and_bonferronis(given: list[float]) -> None:
    p, adjusted = np.array(given), holm(given)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(len(p) * p, 1) + 1e-12).all()
    assert (np.diff(adjusted[np.argsort(p)]) >= 0).all()


def test_by_hand_and_families_side_by_side() -> None:
    families = [[0.01, 0.04, 0.03], [0.9, 0.01, 0.5]]
    assert holm(families) == pytest.approx(np.array([[0.03, 0.06, 0.06], [1.0, 0.03, 1.0]]))


def test_no_test_stays_none() -> None:
    assert holm([]).shape == (0,)
