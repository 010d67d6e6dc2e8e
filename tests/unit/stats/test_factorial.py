"""Main effects of factorial experiments, by their definition and against statsmodels."""

import itertools

import numpy as np
import pytest
import statsmodels.api as sm

from pipeline.stats.factorial import aliased_interactions, design_problem, find_factors, main_effects

# Three factors in all combinations, and a fourth as their product: a half fraction of resolution IV.
_THREE = np.array(list(itertools.product((-1, 1), repeat=3))).T
HALF_FRACTION = np.vstack([_THREE, _THREE.prod(axis=0)])
_SETTINGS = [{"a": str(a), "b": str(b)} for a in (0, 1) for b in (0, 1)]


def test_effects_of_an_additive_model_are_found() -> None:
    effects, seeds = np.array([1.0, -2.0, 0.0, 0.5]), np.array([[3.0], [-4.0], [0.0]])
    values = 70 + effects @ HALF_FRACTION / 2 + seeds
    found = main_effects(values, HALF_FRACTION)
    np.testing.assert_allclose(found.mean, effects, atol=1e-12)
    np.testing.assert_allclose(found.error, 0, atol=1e-12)  # what seeds add to all experiments is no error
    assert found.dof.tolist() == [2 * 7] * 4


@pytest.mark.parametrize("n_seeds", [2, 5])
def test_errors_are_those_of_a_linear_model_with_seeds_as_blocks(n_seeds: int) -> None:
    values = np.random.default_rng(n_seeds).normal(size=(n_seeds, 8))
    experiments, seeds = (np.eye(n) for n in (8, n_seeds))
    rows = [np.concatenate([experiments[j], seeds[i, 1:]]) for i in range(n_seeds) for j in range(8)]
    fit = sm.OLS(values.ravel(), np.array(rows)).fit()
    contrasts = np.hstack([HALF_FRACTION / 4, np.zeros((4, n_seeds - 1))])
    expected = fit.t_test(contrasts)
    found = main_effects(values, HALF_FRACTION)
    np.testing.assert_allclose(found.mean, expected.effect, atol=1e-12)
    np.testing.assert_allclose(found.error, expected.sd, rtol=1e-10)
    np.testing.assert_allclose(found.p_difference(), expected.pvalue, rtol=1e-9)


def test_constants_of_seeds_and_of_studies_change_no_error() -> None:
    values = np.random.default_rng(0).normal(size=(3, 8))
    found, other = (main_effects(table, HALF_FRACTION).error for table in (values, values + np.arange(8)))
    np.testing.assert_allclose(other, found, rtol=1e-12)


def test_tests_without_an_effect_err_as_often_as_stated() -> None:
    rng = np.random.default_rng(0)
    p = [main_effects(rng.normal(size=(2, 8)), HALF_FRACTION).p_difference() for _ in range(2_000)]
    share = np.mean(np.array(p) <= 0.05, axis=0)
    # Five standard deviations of a proportion of 2,000.
    assert np.all(np.abs(share - 0.05) < 5 * (0.05 * 0.95 / 2_000) ** 0.5)


def test_settings_that_change_together_are_one_factor() -> None:
    lars = {"optimizer.name": "lars", "optimizer.trust": "0.001", "rate": "2"}
    sgd = {"optimizer.name": "sgd", "rate": "0.1"}
    (factor,) = find_factors([{**sgd, "epochs": "5"}, {**lars, "epochs": "5"}])
    assert factor.keys == ("optimizer.name", "rate", "optimizer.trust")
    assert (factor.low, factor.high, factor.signs) == ("sgd", "lars", (-1, 1))


def test_the_first_experiment_has_the_low_levels() -> None:
    factors = find_factors(list(reversed(_SETTINGS)))
    assert [(*factor.keys, factor.low, factor.high) for factor in factors] == [("a", "1", "0"), ("b", "1", "0")]
    assert design_problem(factors) is None


def test_a_setting_of_three_values_is_refused() -> None:
    with pytest.raises(ValueError, match="b has 3 values, none, 1, 2"):
        find_factors([{"a": "0"}, {"a": "0", "b": "1"}, {"a": "1", "b": "2"}])


def test_an_unbalanced_factor_is_named() -> None:
    assert design_problem(find_factors(_SETTINGS[:3])) == "a is 0 2 times and 1 1 times"


def test_equal_studies_have_no_factor() -> None:
    assert design_problem(find_factors([{"a": "0"}, {"a": "0"}])) == "no setting differs"


def test_a_design_that_mixes_parts_of_interactions_is_refused() -> None:
    """The design of Plackett and Burman (1946) with 12 studies: each effect has a third of many interactions."""
    row = np.array([1, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1])
    signs = np.vstack([*(np.roll(row, shift) for shift in range(11)), -np.ones(11, dtype=int)])
    factors = find_factors([{f"f{i:02}": str(sign) for i, sign in enumerate(study)} for study in signs])
    assert len(factors) == 11
    problem = design_problem(factors)
    assert problem is not None
    assert problem.endswith("each is mixed with a part of the interaction of the others")


def test_two_factors_that_are_not_crossed_are_named() -> None:
    mostly_together = [("0", "0"), ("0", "0"), ("0", "1"), ("1", "1"), ("1", "1"), ("1", "0")]
    factors = find_factors([{"a": a, "b": b} for a, b in mostly_together])
    assert design_problem(factors) == "a and b do not have all four combinations equally often"


def test_interactions_that_equal_a_main_effect_are_its_aliases() -> None:
    def aliases(signs: np.ndarray) -> list[list[tuple[int, int]]]:
        rows = [{str(i): str(sign) for i, sign in enumerate(column)} for column in signs.T]
        return aliased_interactions(find_factors(rows))

    assert aliases(HALF_FRACTION) == [[], [], [], []]
    assert aliases(np.vstack([_THREE[:2], _THREE[0] * _THREE[1]])) == [[(1, 2)], [(0, 2)], [(0, 1)]]
