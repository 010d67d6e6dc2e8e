"""`batchsieve.compare_runs` on arrays and mappings."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchsieve import InputError, compare_runs
from pipeline.stats.estimates import decimal_step
from pipeline.stats.verdict import DecisionRule, pooled_verdict

NOISE = np.array([-0.0015, -0.0010, -0.0005, -0.0002, 0.0002, 0.0005, 0.0010, 0.0015])
ACCURACIES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20)
MIRRORED = {"helps": "hurts", "hurts": "helps"}


@pytest.mark.parametrize(
    ("shift", "scale", "outcome"),
    [(0.005, 1, "helps"), (-0.005, 1, "hurts"), (0.0, 1, "equivalent"), (0.002, 5, "undecided")],
)
def test_compare_runs_each_outcome(shift: float, scale: float, outcome: str) -> None:
    b = np.linspace(0.8, 0.9, len(NOISE))
    found = compare_runs(b + shift + scale * NOISE, b, margin=0.003)
    assert found.outcome == outcome
    assert found.estimate == pytest.approx(shift)
    assert found.interval is not None
    assert found.interval[0] < shift < found.interval[1]
    assert (found.n, found.margin, found.confidence) == (8, 0.003, 0.95)
    assert outcome in str(found)


@given(ACCURACIES)
@example([(0.0, 0.25), (0.0, 0.25)])
def test_compare_runs_is_the_pooled_verdict(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    found = compare_runs(a, b, margin=0.01, confidence=0.9)
    step = max(decimal_step(a), decimal_step(b))  # Hypothesis also finds numbers of few decimals, such as 0.25
    expected = pooled_verdict(np.sort(a - b)[None, :, None], DecisionRule(margin=0.01, alpha=0.1), step=step)
    assert found.outcome == expected.outcome
    assert found.estimate == expected.estimate.mean
    assert found.p_value == (expected.tests and expected.tests.adjusted_difference)
    assert (found.interval is None) == (len(pairs) == 1)


@given(ACCURACIES, st.randoms(use_true_random=False))
def test_compare_runs_depends_on_pairs_alone(pairs: list[tuple[float, float]], random: Any) -> None:
    """Not on their order, nor on whether they come as arrays or by seed."""
    a, b = np.array(pairs).T
    shuffled = random.sample(range(len(pairs)), len(pairs))
    expected = compare_runs(a, b, margin=0.01)
    assert compare_runs(a[shuffled], b[shuffled], margin=0.01) == expected
    by_seed = {seed: float(a[seed]) for seed in shuffled}, dict(enumerate(b.tolist()))
    assert compare_runs(*by_seed, margin=0.01) == expected


@given(ACCURACIES)
def test_compare_runs_exchanged_exchanges_helps_and_hurts(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    there, back = compare_runs(a, b, margin=0.01), compare_runs(b, a, margin=0.01)
    assert back.outcome == MIRRORED.get(there.outcome, there.outcome)
    assert back.estimate == pytest.approx(-there.estimate)


def test_compare_runs_one_pair_is_undecided() -> None:
    found = compare_runs([0.9], [0.8], margin=0.01)
    assert (found.outcome, found.interval, found.p_value, found.p_equivalence) == ("undecided", None, None, None)


def test_compare_runs_rounded_accuracies_are_not_certain() -> None:
    """Equal differences of accuracies of few decimals, or of 100 samples, may be rounded ones."""
    a, b = np.full(8, 0.9123), np.full(8, 0.9023)
    exact = compare_runs(a, b, margin=0.001)
    assert exact.interval is not None
    for rounded in (
        compare_runs(a, b, margin=0.001, n_test=100),
        compare_runs(np.round(a, 2), np.round(b, 2), margin=0.001),
        compare_runs(np.full(8, 0.91, np.float32), np.full(8, 0.9, np.float32), margin=0.001),
    ):
        assert rounded.interval is not None
        assert np.ptp(exact.interval) < np.ptp(rounded.interval) / 50
    assert compare_runs([0.91, 0.92], [0.91, 0.92], margin=0.003).outcome == "undecided"


def test_compare_runs_names_the_two_sides() -> None:
    found = compare_runs([0.9, 0.91], [0.9, 0.92], margin=0.01, names=("filtered", "full"))
    assert str(found).startswith("filtered against full: ")


@pytest.mark.parametrize(
    ("a", "b", "options", "key"),
    [
        ([0.9], [0.9, 0.8], {}, "b"),
        ([0.9, 0.8], [0.9, 0.8], {"confidence": 1 - 1e-13}, "confidence"),
        ([], [], {}, "a"),
        ([[0.9]], [[0.9]], {}, "a"),
        ([0.9, np.nan], [0.9, 0.8], {}, "a"),
        ([0.9, 0.8], [90.0, 80.0], {}, "b"),
        (["x"], [0.9], {}, "a"),
        ({0: 0.9, 1: 0.8}, {0: 0.9}, {}, "b"),
        ({0: 0.9}, {0: 0.9, 1: 0.8}, {}, "a"),
        ({0: 0.9}, [0.9], {}, "a, b"),
        ([0.9], [0.8], {"margin": 0}, "margin"),
        ([0.9], [0.8], {"margin": 5}, "margin"),
        ([0.9], [0.8], {"confidence": 95}, "confidence"),
        ([0.9], [0.8], {"n_test": 0}, "n_test"),
        ([0.9], [0.8], {"n_test": float("nan")}, "n_test"),
        ([0.9], [0.8], {"n_test": float("inf")}, "n_test"),
    ],
)
def test_compare_runs_names_the_argument_that_is_wrong(a: Any, b: Any, options: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as raised:
        compare_runs(a, b, **{"margin": 0.01, **options})
    assert str(raised.value).partition(": ")[0] == key
