"""The spread between runs against the batch size, with noise that is not normal."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pipeline.replication import CLAIMS, RunRecord
from pipeline.stats.hypothesis_tests import trend_test
from tests.fixtures.claim_records import CRITERIA, Make, claims, grid, hardly_above, make_records

SIZES = [256, 512, 1024, 2048, 4096, 6272, 8192, 10368]


def _with(noise: Callable[[np.random.Generator], float]) -> Make:
    def make(rng: np.random.Generator, seeds: int) -> list[RunRecord]:
        records = make_records(rng, lambda t: 0.8, seeds=seeds, noise=0.002, batch_size=SIZES)
        return [replace(record, top1=round((record.top1 + noise(rng)) * 10_000) / 10_000) for record in records]

    return make


SCENARIOS = {
    "some runs fail": _with(lambda rng: -0.05 * float(rng.random() < 0.15)),
    "Laplace": _with(lambda rng: float(rng.laplace(0, 0.005))),
    "all seeds agree": _with(lambda rng: 0.0),
}


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_noise_of_any_form_is_hardly_ever_taken_for_a_trend(scenario: str, seeds: int) -> None:
    assert sum(claims("variance", SCENARIOS[scenario], 60, seeds)) <= hardly_above(CRITERIA.alpha, 60)


def test_where_all_seeds_agree_everywhere_nothing_is_claimed() -> None:
    make = grid(lambda t: 0.9, noise=0, batch_size=SIZES)
    evidence = CLAIMS["variance"].evaluate(make(np.random.default_rng(0), 4), CRITERIA)
    assert evidence is not None
    assert evidence.p == 1
    np.testing.assert_allclose([evidence.mean, evidence.low, evidence.high], 0, atol=1e-9)


def test_a_size_at_which_all_seeds_agree_is_one_of_little_variance() -> None:
    records = grid(lambda t: 0.9, noise=lambda t: 1e-6 * t.batch_size, batch_size=SIZES)(np.random.default_rng(0), 5)
    alike = [replace(record, top1=0.9) if record.batch_size == 256 else record for record in records]
    evidence = CLAIMS["variance"].evaluate(alike, CRITERIA)
    assert evidence is not None
    assert (evidence.n, evidence.unit) == (8, "batch size")
    assert evidence.p_for < 0.01
    assert 0 < evidence.low < evidence.high


def test_curves_of_other_sizes_are_left_out_and_counted() -> None:
    records = [record for first_seed in (0, 1) for record in SCENARIOS["Laplace"](np.random.default_rng(first_seed), 5)]
    half = len(records) // 2
    both = records[:half] + [replace(t, study="other") for t in records[half:] if t.batch_size > 256]
    evidence = CLAIMS["variance"].evaluate(both, CRITERIA)
    assert evidence is not None
    assert (evidence.n, evidence.settings, evidence.left_out) == (8, 1, 1)


def test_what_would_decide_has_the_smallest_p_of_the_fewest_sizes() -> None:
    few = [math.log2(size) for size in SIZES[:5]]
    least = 2 * trend_test(few, few)[0]
    assert f"p = {least:.2g}" in CLAIMS["variance"].decides
