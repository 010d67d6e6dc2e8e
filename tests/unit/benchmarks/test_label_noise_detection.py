"""Measures of detection against scikit-learn, ties against their expectation, intervals against their meaning."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score

from benchmarks.label_noise.detection import MEASURES, compare, detection

Data = tuple[NDArray[np.float64], NDArray[np.bool_]]


def _draw(seed: int, n: int, n_values: int) -> Data:
    """Values with ties, the most suspect infinite; some of both kinds are planted."""
    rng = np.random.default_rng(seed)
    planted = rng.uniform(size=n) < rng.uniform()
    planted[:2] = True, False
    values = np.floor(n_values * np.clip(rng.uniform(size=n) * (0.5 + planted), 0, 1))
    values[values == values.max()] = np.inf
    return values, planted


_DATA = st.builds(_draw, st.integers(0, 2**32 - 1), st.integers(2, 150), st.sampled_from([1, 3, 20, 10**6]))


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.unique(values, return_inverse=True)[1].astype(np.float64)


@given(_DATA)
def test_areas_are_those_of_scikit_learn(data: Data) -> None:
    values, planted = data
    found = detection(values, planted)
    assert found["auroc"] == pytest.approx(roc_auc_score(planted, _finite(values)))
    assert found["average_precision"] == pytest.approx(average_precision_score(planted, _finite(values)))


@given(st.integers(0, 2**32 - 1), st.integers(2, 150))
def test_without_ties_the_cuts_are_those_of_scikit_learn(seed: int, n: int) -> None:
    _, planted = _draw(seed, n, 1)
    values = np.random.default_rng(seed).permutation(n).astype(np.float64)
    found = detection(values, planted)
    at_share, at_five = values >= n - planted.sum(), values >= n - max(1, round(n / 20))
    for score in (f1_score, precision_score, recall_score):
        assert found["f1_at_true_share"] == pytest.approx(score(planted, at_share))
    assert found["precision_at_5_percent"] == pytest.approx(precision_score(planted, at_five))
    assert found["recall_at_5_percent"] == pytest.approx(recall_score(planted, at_five))


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=2, max_size=6))
def test_ties_at_a_cut_count_by_their_expectation(pairs: list[tuple[int, bool]]) -> None:
    values, planted = np.array([float(value) for value, _ in pairs]), np.array([wrong for _, wrong in pairs])
    if planted.all() or not planted.any():
        return
    # Every order of the images, the most suspect first: ties fall in each order equally often.
    orders = [
        order for order in itertools.permutations(range(len(values))) if (np.diff(values[list(order)]) <= 0).all()
    ]
    n_wrong = int(planted.sum())
    expected = np.mean([planted[list(order[:n_wrong])].sum() for order in orders]) / n_wrong
    found = detection(values, planted)
    assert found["f1_at_true_share"] == pytest.approx(expected)
    assert found["precision_at_5_percent"] == pytest.approx(np.mean([planted[order[0]] for order in orders]))


@given(_DATA, st.integers(0, 2**32 - 1))
def test_only_the_order_of_the_values_counts(data: Data, seed: int) -> None:
    values, planted = data
    rows = np.random.default_rng(seed).permutation(len(values))
    found = detection(np.exp2(_finite(values) / 10)[rows], planted[rows])
    assert found == pytest.approx(detection(values, planted))


def test_by_hand() -> None:
    values = np.array([9, 8, 8, 7, 1, 0] + [0] * 34, dtype=np.float64)
    planted = np.array([True, True, False, False, True] + [False] * 35)
    # 3 are wrong and 3 named: the first and both of the tie. Two are 5 % of 40: the first and half a tie.
    assert detection(values, planted) == pytest.approx(
        {
            "auroc": (37 + 36.5 + 35) / (3 * 37),
            "average_precision": (1 + 2 / 3 + 3 / 5) / 3,
            "f1_at_true_share": 2 / 3,
            "precision_at_5_percent": 1.5 / 2,
            "recall_at_5_percent": 1.5 / 3,
        }
    )


def _scorers(seed: int, n: int = 400) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    planted = np.arange(n) % 10 == 0
    good = planted + rng.normal(size=n)
    return {"good": good, "copy": 2 * good, "chance": rng.normal(size=n)}, planted


def test_a_resample_is_measured_with_its_images_repeated() -> None:
    """One resample: both ends of the interval are its value, sampled as documented."""
    values, planted = _scorers(0)
    found = compare(values, planted, reference="good", resamples=1, seed=5).measured["chance"]
    rng = np.random.default_rng(5)
    ids = np.concatenate(
        [rng.choice(rows, size=len(rows)) for rows in (np.flatnonzero(planted), np.flatnonzero(~planted))]
    )
    again = detection(values["chance"][ids], planted[ids])
    for measure in MEASURES:
        assert found[measure].low == found[measure].high == pytest.approx(again[measure])
        assert found[measure].value == detection(values["chance"], planted)[measure]


def test_scorers_share_their_resamples() -> None:
    values, planted = _scorers(1)
    compared = compare(values, planted, reference="good", resamples=50)
    assert set(compared.measured) == set(values)
    assert set(compared.differences) == {"copy", "chance"}
    for measure in MEASURES:
        same = compared.differences["copy"][measure]
        assert same.low == same.value == same.high == 0
    worse = compared.differences["chance"]["auroc"]
    assert worse.low < worse.value < worse.high < 0
    assert worse.value == compared.measured["chance"]["auroc"].value - compared.measured["good"]["auroc"].value


def test_equal_seeds_give_equal_intervals_and_others_differ() -> None:
    values, planted = _scorers(2)
    first, same, other = (compare(values, planted, reference="good", resamples=20, seed=seed) for seed in (3, 3, 4))
    assert first == same
    assert first != other


@pytest.mark.slow
def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Of the AUROC of normal values with planted ones shifted by 1, which is Phi(1 / sqrt 2) = 0.7602."""
    covered = []
    for seed in range(200):
        values, planted = _scorers(seed, n=300)
        interval = compare({"good": values["good"]}, planted, reference="good", resamples=200).measured["good"]["auroc"]
        covered.append(interval.low <= 0.7602 <= interval.high)
    assert 0.88 <= np.mean(covered) <= 0.99


def test_compare_sorts_each_scorer_once_for_all_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is what makes 1,000 resamples of 50,000 images take seconds."""
    values, planted = _scorers(3)
    real, calls = np.unique, []

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return real(*args, **options)

    monkeypatch.setattr(np, "unique", counted)
    compare(values, planted, reference="good", resamples=1)
    of_one = len(calls)
    compare(values, planted, reference="good", resamples=10)
    assert of_one >= len(values)
    assert len(calls) == 2 * of_one
