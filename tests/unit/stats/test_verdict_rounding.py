"""Accuracies are counts of test images: equal accuracies may be the result of rounding."""

import math

import numpy as np
import pytest
import scipy.stats

from pipeline.stats.comparisons import comparisons
from pipeline.stats.estimates import rounding_sd
from pipeline.stats.replicates import replicate_estimate
from pipeline.stats.verdict import DecisionRule, pooled_verdict, verdicts_by_setting
from tests.fixtures.runs import PLAN, made_runs
from tests.fixtures.slow import quick_first

RULE = DecisionRule(margin=0.005, alpha=0.05)
SIMULATIONS = 1000


def _rounded(rng: np.random.Generator, difference: float, *, n: int, images: int, sd: float) -> np.ndarray:
    """(SIMULATIONS, n) differences of two accuracies near 0.9, each a count of `images`."""
    common = 0.9 + rng.random((SIMULATIONS, 1)) / images
    treated, control = (
        np.round((common + mean + sd / 2**0.5 * rng.normal(size=(SIMULATIONS, n))) * images) / images
        for mean in (difference, 0.0)
    )
    return np.asarray(treated - control)


def test_two_seeds_that_differ_by_an_image_are_not_equivalent() -> None:
    found = pooled_verdict(np.full((1, 2, 1), 1 / 360), RULE, step=1 / 360)
    assert found.outcome == "undecided"
    assert found.tests is not None
    assert min(found.tests.t, found.tests.equivalence) > 0.05
    assert found.estimate.low is not None
    assert found.estimate.high is not None
    assert found.estimate.low < 0 < 0.005 < found.estimate.high
    (same,) = verdicts_by_setting([np.full((1, 2), 1 / 360)], RULE, step=1 / 360)
    assert same.tests == found.tests


@pytest.mark.parametrize("settings", [1, 4])
def test_rounding_of_both_accuracies_is_independent_by_setting(settings: int) -> None:
    found = pooled_verdict(np.zeros((1, 6, settings)), RULE, step=1 / 360)
    rounding = rounding_sd(1 / 360) * math.sqrt(2 / settings)
    expected = replicate_estimate(np.zeros((1, 6)), 1 - found.levels.difference, rounding=rounding)
    assert found.estimate == expected
    assert expected.high is not None
    assert expected.high > 0


@pytest.mark.parametrize(
    ("n", "images", "sd"), quick_first(1, [(2, 360, 0.003), (3, 360, 0.001), (6, 360, 0.002), (5, 1000, 0.001)])
)
def test_equivalence_at_the_margin_is_claimed_as_rarely_as_stated(n: int, images: int, sd: float) -> None:
    rng = np.random.default_rng(n)
    values = _rounded(rng, RULE.margin, n=n, images=images, sd=sd)
    found = [pooled_verdict(of[None, :, None], RULE, step=1 / images) for of in values]
    wrong = np.mean([verdict.outcome == "equivalent" for verdict in found])
    assert wrong <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / SIMULATIONS)


def test_a_report_rounds_by_test_images_and_settings_average_it() -> None:
    runs = made_runs({"filtered": [0.9] * 6, "random": [0.9] * 6}, 32)
    more = runs + made_runs({"filtered": [0.9] * 6, "random": [0.9] * 6}, 64)
    one, two = (comparisons(found, PLAN)[0].pooled for found in (runs, more))
    assert one is not None
    assert two is not None
    assert one.estimate.high is not None
    assert two.estimate.high is not None
    assert one.outcome == "equivalent"
    assert 0 < two.estimate.high < one.estimate.high < 1 / PLAN.n_images


@pytest.mark.parametrize("shared", [False, True])
def test_the_rounding_error_of_draws_is_that_of_their_runs(shared: bool) -> None:
    """Control runs that all draws share are rounded once per seed: their errors do not average out over draws."""
    draws, seeds, step = 6, 2, 1 / 360
    rng = np.random.default_rng(0)
    treated, control = rng.uniform(-step / 2, step / 2, (2, 20_000, draws, seeds))
    if shared:
        control = control[:, :1]
    simulated = (treated - control).mean(axis=(1, 2)).std()
    table = np.zeros((draws, seeds))
    verdict = pooled_verdict(table[..., None], RULE, step=step, shared_control=shared)
    assert verdict.estimate.high is not None
    error = verdict.estimate.high / scipy.stats.t.isf(RULE.alpha / 2, 1)
    assert error == pytest.approx(simulated, rel=0.03)
