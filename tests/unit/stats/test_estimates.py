import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from pipeline.stats import crossed_estimate, mean_estimate, wilson_interval
from pipeline.stats.estimates import decimal_step

samples = hnp.arrays(np.float64, st.integers(2, 12), elements=st.floats(-1e3, 1e3))


@given(samples, st.floats(0.5, 0.999))
def test_mean_interval_is_scipys_one_sample_t(sample: np.ndarray, confidence: float) -> None:
    estimate = mean_estimate(sample, confidence)
    assert estimate.n == len(sample)
    assert estimate.mean == pytest.approx(sample.mean())
    if np.ptp(sample) > 1e-6 * np.abs(sample).max():  # scipy warns where there is hardly any spread
        assert estimate.sd == pytest.approx(stats.tstd(sample))
        expected = stats.ttest_1samp(sample, 0).confidence_interval(confidence)
        assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)


def test_paired_difference_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, sd 1, t(0.975, 2) = 4.302653.
    estimate = mean_estimate(np.subtract([2, 4, 6], [1, 2, 3]), 0.95)
    assert (estimate.n, estimate.mean, estimate.sd) == (3, 2.0, 1.0)
    half = 4.302653 / 3**0.5
    assert (estimate.low, estimate.high) == pytest.approx((2 - half, 2 + half), abs=1e-6)


def test_one_value_has_no_interval() -> None:
    estimate = mean_estimate([0.5], 0.95)
    assert (estimate.n, estimate.mean, estimate.sd, estimate.low, estimate.high) == (1, 0.5, None, None, None)


def test_equal_values_have_an_interval_of_no_width() -> None:
    estimate = mean_estimate([0.25, 0.25], 0.95)
    assert (estimate.low, estimate.high) == (0.25, 0.25)


def _coverage(estimates: list[tuple[float | None, float | None]], truth: float) -> float:
    return float(np.mean([low is not None and high is not None and low <= truth <= high for low, high in estimates]))


def test_paired_interval_covers_the_truth_as_often_as_stated() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        shared = rng.normal(0, 5, 4)
        estimate = mean_estimate(shared + rng.normal(0.3, 1, 4) - shared, 0.9)
        found.append((estimate.low, estimate.high))
    # Binomial spread of 2,000 simulations: sd 0.0067.
    assert _coverage(found, 0.3) == pytest.approx(0.9, abs=0.02)


def test_pooled_interval_covers_although_settings_share_their_seed() -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(2000):
        differences = rng.normal(0.3, 1, (4, 1)) + rng.normal(0, 0.2, (4, 6))
        estimate = mean_estimate(differences.mean(axis=1), 0.9)
        found.append((estimate.low, estimate.high))
    assert _coverage(found, 0.3) == pytest.approx(0.9, abs=0.02)


def test_wilson_interval_by_hand() -> None:
    # (p + z^2/2n +- z sqrt(p q / n + z^2 / 4 n^2)) / (1 + z^2 / n) for 8 of 10, z = 1.959964.
    assert wilson_interval(8, 10, 0.95) == pytest.approx((0.490162, 0.943318), abs=1e-6)


@pytest.mark.parametrize(
    ("sample", "confidence"), [([], 0.95), ([[1.0, 2.0]], 0.95), ([np.nan, 1.0], 0.95), ([1.0, 2.0], 1.0)]
)
def test_what_is_no_sample_is_refused(sample: list[float], confidence: float) -> None:
    with pytest.raises(ValueError, match=r"sample|confidence"):
        mean_estimate(sample, confidence)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (3, 10), (8, 4)])
@pytest.mark.parametrize("spreads", [(1.0, 0.0, 0.2), (0.0, 1.0, 0.2), (1.0, 1.0, 1.0), (0.0, 0.0, 1.0)])
def test_crossed_interval_covers_whichever_factor_varies(
    rows: int, columns: int, spreads: tuple[float, float, float]
) -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        own, shared, rest = (scale * rng.normal(size=size) for scale, size in zip(
            spreads, ((rows, 1), (1, columns), (rows, columns)), strict=True
        ))  # fmt: skip
        estimate = crossed_estimate(0.3 + own + shared + rest, 0.9)
        found.append((estimate.low, estimate.high))
    assert _coverage(found, 0.3) > 0.9 - 4 * (0.9 * 0.1 / 2000) ** 0.5


def test_one_row_or_column_leaves_its_factor_unknown() -> None:
    for values in ([[1.0, 2.0]], [[1.0], [2.0]]):
        estimate = crossed_estimate(values, 0.9)
        assert (estimate.mean, estimate.low, estimate.n) == (1.5, None, len(values))


def test_crossed_estimate_by_hand() -> None:
    # Rows 1 and 3, columns 1.5 and 2.5: variances 2 / 2 and 0.5 / 2.
    estimate = crossed_estimate([[0.5, 1.5], [2.5, 3.5]], 0.95)
    half = float(stats.t.ppf(0.975, 1)) * 1.25**0.5
    assert (estimate.low, estimate.high) == pytest.approx((2 - half, 2 + half))
    assert estimate.sd == pytest.approx(2**0.5)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9), st.integers(0, 6), st.sampled_from(["f4", "f8"]))
def test_the_step_of_decimals_is_that_of_the_value_with_most(counts: list[int], decimals: int, dtype: str) -> None:
    needed = max(len(f"{count % 10**decimals:0{decimals}}".rstrip("0")) if decimals else 0 for count in counts)
    values = [count % 10**decimals / 10**decimals for count in counts]
    assert decimal_step(np.array(values, dtype=dtype)) == pytest.approx(10.0**-needed)


def test_the_step_of_decimals_of_sums_and_integers() -> None:
    assert decimal_step([0.1 + 0.2, 0.35]) == 0.01
    assert decimal_step([90, 91]) == 1
    assert decimal_step([1 / 3]) <= 1e-12
