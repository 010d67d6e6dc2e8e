"""The noise scale against problems whose gradient and covariance are known."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pipeline.stats import mean_estimate
from pipeline.training.noise_scale import NoiseSample, NoiseScale, estimate_noise_scale
from tests.fixtures.slow import quick_first

# b = 2, B = 4: |G|^2 = (4 * 3 - 2 * 4) / 2 = 2 and tr(Sigma) = (4 - 3) / (1/2 - 1/4) = 4.
FIRST = NoiseSample(small_batch=2, big_batch=4, mean_small_sq_norm=4, big_sq_norm=3)
# |G|^2 = (4 * 8 - 2 * 10) / 2 = 6 and tr(Sigma) = (10 - 8) / (1/4) = 8.
SECOND = NoiseSample(small_batch=2, big_batch=4, mean_small_sq_norm=10, big_sq_norm=8)


def sample_from_norms(sizes: Sequence[int], sq_norms: Sequence[float], big_sq_norm: float) -> NoiseSample:
    """Build a sample from the parts' sizes b_i in images and squared norms |g_i|^2, (k,) each."""
    batch = sum(sizes)
    return NoiseSample(
        small_batch=batch / len(sizes),
        big_batch=batch,
        mean_small_sq_norm=sum(size / batch * norm for size, norm in zip(sizes, sq_norms, strict=True)),
        big_sq_norm=big_sq_norm,
    )


def sample_of(gradients: NDArray[np.float64], sizes: Sequence[int]) -> NoiseSample:
    """From one batch's per-image gradients (B, d), cut into parts of `sizes` images."""
    parts = np.split(gradients, np.cumsum(sizes)[:-1])
    norms = [float((part.mean(0) ** 2).sum()) for part in parts]
    return sample_from_norms(sizes, norms, float((gradients.mean(0) ** 2).sum()))


def normal_samples(
    rng: np.random.Generator, n: int, sizes: Sequence[int], mean: NDArray[np.float64], sd: NDArray[np.float64]
) -> list[NoiseSample]:
    return [sample_of(rng.normal(mean, sd, (sum(sizes), len(mean))), sizes) for _ in range(n)]


def test_two_steps_on_paper() -> None:
    scale = estimate_noise_scale([FIRST, SECOND])
    assert (scale.samples, scale.gradient_sq_norm, scale.noise_trace) == (2, 4, 6)
    assert scale.critical_batch == 1.5  # images; the mean of ratios would be (4/2 + 8/6) / 2 = 1.67
    assert scale.reason is None


def test_unequal_parts_on_paper() -> None:
    """Three images with gradient norm 2 and one with 6: 3/4 * 2 + 1/4 * 6 = 3, in parts of 2 on average."""
    sample = sample_from_norms([3, 1], [2.0, 6.0], 2.5)
    assert sample == NoiseSample(small_batch=2, big_batch=4, mean_small_sq_norm=3, big_sq_norm=2.5)
    # (4 * 2.5 - 2 * 3) / 2 = 2 and (3 - 2.5) / (1/4) = 2.
    scale = estimate_noise_scale([sample, sample])
    assert (scale.gradient_sq_norm, scale.noise_trace, scale.critical_batch) == (2, 2, 1)


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 2)), elements=st.integers(-5, 5)),
    st.lists(st.integers(1, 3), min_size=2, max_size=4).filter(lambda sizes: sum(sizes) <= 4),
)
def test_both_estimators_are_unbiased_for_parts_of_any_sizes(population: NDArray[np.float64], sizes: list[int]) -> None:
    """Exactly: the mean over every batch that can be sampled, with replacement, is the population's value."""
    draws = itertools.product(range(len(population)), repeat=sum(sizes))
    scale = estimate_noise_scale([sample_of(population[list(draw)], sizes) for draw in draws])
    expected = population.mean(0)
    assert scale.gradient_sq_norm == pytest.approx((expected**2).sum(), abs=1e-9)
    assert scale.noise_trace == pytest.approx(((population - expected) ** 2).sum(1).mean(), abs=1e-9)


def test_sampling_without_replacement_estimates_all_images() -> None:
    """Exactly, over all orders of N = 5 images: |G_N|^2 - tr(Sigma) / N, Sigma with N - 1 below the line."""
    population = np.array([[3.0, 1.0], [4.0, -1.0], [2.0, 2.0], [6.0, 0.0], [5.0, 3.0]])
    scale = estimate_noise_scale(
        [sample_of(population[list(order)], [2, 1]) for order in itertools.permutations(range(5), 3)]
    )
    trace = population.var(0, ddof=1).sum()
    own = (population.mean(0) ** 2).sum()
    assert scale.noise_trace == pytest.approx(trace)
    assert scale.gradient_sq_norm == pytest.approx(own - trace / 5)
    assert scale.critical_batch is not None
    assert scale.critical_batch / (1 + scale.critical_batch / 5) == pytest.approx(trace / own)


def test_a_training_set_learned_by_heart_gives_no_interval() -> None:
    population = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    orders = itertools.permutations(range(4), 3)
    scale = estimate_noise_scale([sample_of(population[list(order)], [1, 1, 1]) for order in orders] * 20)
    assert scale.gradient_sq_norm == pytest.approx(-1 / 3)
    assert (scale.critical_batch, scale.low, scale.high) == (None, None, None)


@pytest.mark.parametrize("sizes", quick_first(1, [[9, 8, 8, 8], [16, 16], [1] * 12]))
def test_a_known_noise_scale_is_found(sizes: list[int]) -> None:
    """Gradients N(G, Sigma) with sd from 0.1 to 2 along 20 axes, |G|^2 = 1.25: B = tr(Sigma) / 1.25 images."""
    mean, sd = np.full(20, 0.25), np.linspace(0.1, 2, 20)
    truth = float((sd**2).sum() / (mean**2).sum())
    scale = estimate_noise_scale(normal_samples(np.random.default_rng(0), 4000, sizes, mean, sd))
    assert scale.critical_batch == pytest.approx(truth, rel=0.04)
    assert scale.noise_trace == pytest.approx((sd**2).sum(), rel=0.02)
    assert scale.low is not None
    assert scale.high is not None
    assert truth / 1.1 < scale.low < truth < scale.high < truth * 1.1


@pytest.mark.slow
def test_the_mean_of_ratios_is_biased_and_not_what_is_returned() -> None:
    """A mutant that divides step by step is far off where a single step says little."""
    mean, sd = np.full(20, 0.25), np.full(20, 1.5)
    truth = float((sd**2).sum() / (mean**2).sum())
    samples = normal_samples(np.random.default_rng(1), 4000, [8, 8, 8, 8], mean, sd)
    single = [estimate_noise_scale([sample]) for sample in samples]
    ratios = [one.noise_trace / one.gradient_sq_norm for one in single if one.noise_trace and one.gradient_sq_norm]
    positive = [ratio for ratio in ratios if ratio > 0]
    ours = estimate_noise_scale(samples).critical_batch
    assert ours == pytest.approx(truth, rel=0.05)
    for mutant in (np.mean(ratios), np.mean(positive)):
        assert not 0.8 * truth < mutant < 1.2 * truth
        assert ours != pytest.approx(mutant)


def test_batches_of_several_sizes_mean_the_same() -> None:
    """A ragged last batch, or a grown one, estimates the same quantities."""
    rng, mean, sd = np.random.default_rng(2), np.full(10, 0.5), np.ones(10)
    samples = [
        sample for sizes in ([8, 8], [16, 16], [5, 4], [4] * 8) for sample in normal_samples(rng, 1000, sizes, mean, sd)
    ]
    assert estimate_noise_scale(samples).critical_batch == pytest.approx(4.0, rel=0.04)


@given(st.floats(1e-6, 1e6))
def test_the_unit_of_the_loss_does_not_matter(factor: float) -> None:
    scaled = [
        replace(one, mean_small_sq_norm=one.mean_small_sq_norm * factor, big_sq_norm=one.big_sq_norm * factor)
        for one in (FIRST, SECOND)
    ]
    scale, plain = estimate_noise_scale(scaled), estimate_noise_scale([FIRST, SECOND])
    assert scale.critical_batch == pytest.approx(plain.critical_batch)
    assert scale.low == pytest.approx(plain.low)
    assert scale.noise_trace == pytest.approx(6 * factor)


# The interval


def upper(scale: NoiseScale) -> float:
    return math.inf if scale.high is None else scale.high


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(2, 8), st.just(2)), elements=st.floats(0, 10, allow_subnormal=False)),
    st.floats(0, 50),
)
@example(np.array([[2.0, 6.0], [6.0, 10.0]]), 0.0)
@example(np.array([[3.0, 0.0], [0.0, 1.0]]), 1.0)
@example(np.array([[9.0, 2.0], [9.0, 9.0]]), 0.01)
def test_the_interval_holds_what_a_t_test_does_not_refuse(norms: NDArray[np.float64], ratio: float) -> None:
    """Fieller's definition, computed the slow way for any one ratio."""
    samples = [
        NoiseSample(small_batch=2, big_batch=4, mean_small_sq_norm=whole + excess, big_sq_norm=whole)
        for whole, excess in norms
    ]
    signal, noise = norms[:, 0] - norms[:, 1], 4 * norms[:, 1]
    difference = mean_estimate(noise - ratio * signal, 0.95)
    assert difference.low is not None
    assert difference.high is not None
    assume(min(abs(difference.low), abs(difference.high)) > 1e-6 * (1 + ratio))
    scale = estimate_noise_scale(samples)
    if scale.low is None:
        assert difference.low > 0
        return
    assert scale.low >= 0
    is_covered = scale.low <= ratio <= upper(scale)
    if difference.low < 0 < difference.high:
        assert is_covered
    elif scale.low > 0 or scale.high is not None:  # else nothing is known, and every ratio is covered
        assert not is_covered


@pytest.mark.slow
@pytest.mark.parametrize("truth", [4.0, 64.0, 1000.0])
@pytest.mark.parametrize("n", [3, 20])
def test_the_interval_covers_the_truth_as_often_as_stated(truth: float, n: int) -> None:
    """Also where the gradient hardly stands out: there it has no upper end rather than a wrong one."""
    rng, repeats = np.random.default_rng(3), 800
    mean, sd = np.array([1.0] + [0.0] * 19), np.full(20, (truth / 20) ** 0.5)
    estimates = [estimate_noise_scale(normal_samples(rng, n, [16] * 4, mean, sd)) for _ in range(repeats)]
    covered = np.mean([one.low is not None and one.low <= truth <= upper(one) for one in estimates])
    assert 0.93 < covered < 0.98
    bounded = np.mean([one.high is not None for one in estimates])
    assert bounded == 1 if truth == 4 else bounded < 0.1 if truth == 1000 else True


def test_pure_noise_still_gives_a_lower_bound() -> None:
    """|G| = 0: its estimate may be negative, but a small critical batch size is ruled out."""
    samples = normal_samples(np.random.default_rng(5), 50, [8] * 4, np.zeros(20), np.ones(20))
    scale = estimate_noise_scale(samples)
    assert scale.low is not None
    assert scale.low > 50
    assert scale.high is None


def test_equal_steps_have_an_interval_of_no_width() -> None:
    scale = estimate_noise_scale([FIRST, FIRST, FIRST])
    assert (scale.low, scale.critical_batch, scale.high) == (2, 2, 2)


# What cannot be estimated


def test_no_steps_tell_nothing() -> None:
    whole = sample_from_norms([4], [3.0], 3.0)  # small = big
    for samples in ([], [whole, whole]):
        scale = estimate_noise_scale(samples)
        assert scale == NoiseScale(samples=0, reason=scale.reason)
        assert scale.reason


def test_one_step_is_not_enough() -> None:
    scale = estimate_noise_scale([FIRST])
    assert (scale.samples, scale.gradient_sq_norm, scale.noise_trace) == (1, 2, 4)
    assert (scale.critical_batch, scale.low, scale.high) == (None, None, None)
    assert scale.reason


def test_a_gradient_below_its_noise_has_no_ratio() -> None:
    """(4 * 1 - 2 * 3) / 2 = -1: the estimate is reported unchanged, without a batch size."""
    drowned = replace(FIRST, mean_small_sq_norm=3.0, big_sq_norm=1.0)
    scale = estimate_noise_scale([drowned, drowned])
    assert (scale.gradient_sq_norm, scale.noise_trace, scale.critical_batch) == (-1, 8, None)
    assert scale.reason
    nought = replace(FIRST, mean_small_sq_norm=2.0, big_sq_norm=1.0)
    assert estimate_noise_scale([nought, nought]).critical_batch is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["mean_small_sq_norm", "big_sq_norm"])
def test_steps_that_tell_nothing_do_not_count(field: str, value: float) -> None:
    overflown = replace(FIRST, **{field: value})  # type: ignore[arg-type]
    whole = sample_from_norms([4], [3.0], 3.0)
    assert estimate_noise_scale([FIRST, overflown, whole, SECOND]) == estimate_noise_scale([FIRST, SECOND])


def test_impossible_sizes_are_bugs() -> None:
    for small, big in ((0, 4), (5, 4)):
        with pytest.raises(AssertionError):
            replace(FIRST, small_batch=small, big_batch=big)


def test_an_estimate_can_be_written_as_json() -> None:
    for samples in ([], [FIRST], [FIRST, SECOND]):
        assert json.loads(json.dumps(asdict(estimate_noise_scale(samples)), allow_nan=False)) == asdict(
            estimate_noise_scale(samples)
        )
