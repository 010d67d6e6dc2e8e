"""The spread between runs against the batch size, of runs that are not normal."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pipeline.replication import CLAIMS, RunRecord
from pipeline.stats.hypothesis_tests import trend_test
from tests.fixtures.claim_records import RULE, Make, claims, grid, hardly_above, made_trials

SIZES = [256, 512, 1024, 2048, 4096, 6272, 8192, 10368]


def _with(noise: Callable[[np.random.Generator], float]) -> Make:
    def make(rng: np.random.Generator, seeds: int) -> list[RunRecord]:
        trials = made_trials(rng, lambda t: 0.8, seeds=seeds, noise=0.002, batch_size=SIZES)
        return [replace(trial, top1=round((trial.top1 + noise(rng)) * 10_000) / 10_000) for trial in trials]

    return make


WORLDS = {
    "some runs fail": _with(lambda rng: -0.05 * float(rng.random() < 0.15)),
    "Laplace": _with(lambda rng: float(rng.laplace(0, 0.005))),
    "all seeds agree": _with(lambda rng: 0.0),
}


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("world", WORLDS)
def test_noise_of_any_form_is_hardly_ever_taken_for_a_trend(world: str, seeds: int) -> None:
    assert sum(claims("variance", WORLDS[world], 60, seeds)) <= hardly_above(RULE.alpha, 60)


def test_where_all_seeds_agree_everywhere_nothing_is_claimed() -> None:
    make = grid(lambda t: 0.9, noise=0, batch_size=SIZES)
    found = CLAIMS["variance"].evaluate(make(np.random.default_rng(0), 4), RULE)
    assert found is not None
    assert found.p == 1
    np.testing.assert_allclose([found.mean, found.low, found.high], 0, atol=1e-9)


def test_a_size_at_which_all_seeds_agree_is_one_of_little_variance() -> None:
    trials = grid(lambda t: 0.9, noise=lambda t: 1e-6 * t.batch_size, batch_size=SIZES)(np.random.default_rng(0), 5)
    alike = [replace(trial, top1=0.9) if trial.batch_size == 256 else trial for trial in trials]
    found = CLAIMS["variance"].evaluate(alike, RULE)
    assert found is not None
    assert (found.n, found.unit) == (8, "batch size")
    assert found.p_for < 0.01
    assert 0 < found.low < found.high


def test_curves_of_other_sizes_are_left_out_and_counted() -> None:
    trials = [trial for seed_world in (0, 1) for trial in WORLDS["Laplace"](np.random.default_rng(seed_world), 5)]
    half = len(trials) // 2
    both = trials[:half] + [replace(t, study="other") for t in trials[half:] if t.batch_size > 256]
    found = CLAIMS["variance"].evaluate(both, RULE)
    assert found is not None
    assert (found.n, found.settings, found.left_out) == (8, 1, 1)


def test_what_would_decide_names_the_smallest_p_of_the_fewest_sizes() -> None:
    few = [math.log2(size) for size in SIZES[:5]]
    least = 2 * trend_test(few, few)[0]
    assert f"p = {least:.2g}" in CLAIMS["variance"].decides
