"""Ratios of the treated arm to others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stats.ratios import ratios
from pipeline.stats.runs import Run
from tests.fixtures.runs import Draws, made_draws, made_run


def _runs(seeds: int) -> list[Run]:
    return [made_run(arm, seed, 0.9) for arm in ("filtered", "random") for seed in range(seeds)]


@given(st.lists(st.floats(0.1, 10), min_size=4, max_size=24), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    runs = _runs(len(values) // 2)
    values = values[: len(runs)]
    (one,), (other,) = ratios(runs, values, 0.05), ratios(runs, [factor * value for value in values], 0.05)
    np.testing.assert_allclose([one.mean or 0, one.p or 0], [other.mean or 0, other.p or 0], rtol=1e-6, atol=1e-9)


def test_claims_without_a_difference_are_as_rare_as_stated() -> None:
    rng, runs = np.random.default_rng(0), _runs(8)
    claims = [ratios(runs, list(rng.lognormal(size=16)), 0.1)[0].outcome != "undecided" for _ in range(1000)]
    assert np.mean(claims) < 0.1 + 4 * (0.1 * 0.9 / 1000) ** 0.5


def test_intervals_cover_the_true_ratio() -> None:
    rng, runs, truth = np.random.default_rng(1), _runs(5), 0.7
    scale = np.array([truth] * 5 + [1.0] * 5)
    found = [ratios(runs, list(scale * rng.lognormal(sigma=0.3, size=10)), 0.05)[0] for _ in range(1000)]
    covered = [ratio.low is not None and ratio.high is not None and ratio.low <= truth <= ratio.high for ratio in found]
    assert abs(np.mean(covered) - 0.95) < 4 * (0.05 * 0.95 / 1000) ** 0.5


def test_with_several_draws_of_the_filter_they_are_what_counts() -> None:
    draws: Draws = {f"resnet18{suffix}": [0.9] * 4 for suffix in ("", "-r1", "-r2")}
    runs = made_draws({"filtered": draws, "random": draws})
    assert ratios(runs, [1.0 + 0.01 * row for row in range(len(runs))], 0.05)[0].n == 3


@pytest.mark.parametrize(("draws", "unit"), [(1, "seed"), (2, "draw")])
def test_the_unit_is_the_draw_from_two_draws_on(draws: int, unit: str) -> None:
    networks = [f"resnet18{suffix}" for suffix in ("", "-r1")][:draws]
    table: Draws = {network: [0.9] * 4 for network in networks}
    runs = made_draws({"filtered": table, "random": table})
    (ratio,) = ratios(runs, [1.0 + 0.01 * row for row in range(len(runs))], 0.05)
    assert (ratio.unit, ratio.draws, ratio.seeds) == (unit, draws, 4)
