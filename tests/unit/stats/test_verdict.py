from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stats import crossed_estimate, mean_estimate
from pipeline.stats.formatting import verdict_sentence
from pipeline.stats.sequential import look_levels
from pipeline.stats.verdict import DecisionRule, Outcome, Verdict, pooled_verdict, verdicts_by_setting
from tests.fixtures.golden import check_golden

RULE = DecisionRule(margin=0.003, alpha=0.05)
# Eight seeds around 0, of standard deviation 0.001.
NOISE = np.array([-0.0015, -0.0010, -0.0005, -0.0002, 0.0002, 0.0005, 0.0010, 0.0015])


def _one_draw(seeds: np.ndarray) -> np.ndarray:
    return seeds[None, :, None]


@pytest.mark.parametrize(
    ("shift", "scale", "outcome"),
    [(0.005, 1, "helps"), (-0.005, 1, "hurts"), (0.0, 1, "equivalent"), (0.002, 5, "undecided")],
)
def test_each_outcome(shift: float, scale: float, outcome: Outcome) -> None:
    found = pooled_verdict(_one_draw(shift + scale * NOISE), RULE)
    assert found.outcome == outcome
    assert not found.too_few_pairs
    assert not found.significant_but_small
    assert found.estimate == mean_estimate(shift + scale * NOISE, 0.95)


def test_a_certain_difference_below_the_margin_is_equivalent() -> None:
    found = pooled_verdict(_one_draw(0.0018 + 0.5 * NOISE), RULE)
    assert (found.outcome, found.significant_but_small) == ("equivalent", True)


@given(st.lists(st.floats(-0.01, 0.01).map(lambda value: round(value, 4)), min_size=2, max_size=8))
def test_the_arms_exchanged_exchange_helps_and_hurts(seeds: list[float]) -> None:
    exchanged = {"helps": "hurts", "hurts": "helps"}
    there, back = (pooled_verdict(sign * _one_draw(np.array(seeds)), RULE).outcome for sign in (1, -1))
    assert back == exchanged.get(there, there)


@given(st.lists(st.floats(-0.01, 0.01).map(lambda value: round(value, 4)), min_size=2, max_size=5))
def test_five_seeds_or_fewer_never_claim_a_difference(seeds: list[float]) -> None:
    found = pooled_verdict(_one_draw(np.array(seeds)), RULE)
    assert found.outcome in ("equivalent", "undecided")
    assert found.too_few_pairs


def test_settings_are_averaged_per_seed_first() -> None:
    """Forty settings of one seed are no forty replicates."""
    sizes = np.broadcast_to(_one_draw(0.005 + NOISE), (1, 8, 40))
    once, often = (pooled_verdict(values, RULE) for values in (sizes[..., :1], sizes))
    assert once.tests is not None
    assert often.tests is not None
    assert (often.estimate.n, often.settings, once.settings) == (8, 40, 1)
    assert often.tests.t == pytest.approx(once.tests.t)


def test_draws_are_the_replicates_and_cross_their_seeds() -> None:
    values = 0.005 + NOISE[:7, None] + 0.1 * NOISE
    found = pooled_verdict(values[..., None], RULE)
    assert (found.unit, found.draws, found.seeds, found.estimate.n) == ("draw", 7, 8, 7)
    assert found.estimate == crossed_estimate(values, 0.95)
    assert found.outcome == "helps"
    few = pooled_verdict(values[:3, :, None], RULE)
    assert few.tests is not None
    assert (few.tests.pairs, few.too_few_pairs, few.outcome) == (3, True, "undecided")


def test_holm_asks_more_of_a_setting_among_others() -> None:
    values = 0.005 + NOISE[1:7]
    (alone,) = verdicts_by_setting([values[None]], RULE)
    assert (alone.outcome, alone.comparisons) == ("helps", 1)
    among = verdicts_by_setting([values[None]] * 4, RULE)
    for found in among:
        assert found.tests is not None
        assert (found.outcome, found.too_few_pairs, found.comparisons) == ("undecided", True, 4)
        assert (found.tests.smallest_difference, found.pairs_needed) == (0.125, 8)


def test_a_setting_of_many_seeds_makes_room_for_one_of_few() -> None:
    """Holm rejects the one of 10 seeds first; the sign-flip test of 6 is then compared with alpha itself."""
    many, few = verdicts_by_setting([[[0.005] * 10], [[0.005] * 6]], RULE)
    assert (many.outcome, few.outcome, few.too_few_pairs) == ("helps", "helps", False)


def test_a_setting_without_spread_is_undecided_and_not_counted() -> None:
    one, alone = verdicts_by_setting([[[0.01]], [0.005 + NOISE]], RULE)
    assert (one.outcome, one.tests, one.estimate.n) == ("undecided", None, 1)
    assert (alone.outcome, alone.comparisons) == ("helps", 1)
    shared = pooled_verdict(np.full((3, 1, 2), 0.01), RULE)
    assert (shared.outcome, shared.tests) == ("undecided", None)
    assert (shared.estimate.low, shared.estimate.high) == (None, None)
    assert verdicts_by_setting([], RULE) == []


def _sentence(found: Verdict) -> str:
    return verdict_sentence(found, treated="filtered", control="random_uniform", matched="steps")


def test_sentences() -> None:
    looks = replace(RULE, looks=(6, 8))
    at_look = pooled_verdict(_one_draw(0.005 + NOISE[:6]), looks)
    of_draws = 0.005 + NOISE[:7, None, None]
    (among, _) = verdicts_by_setting([[0.005 + NOISE]] * 2, RULE)
    verdicts = {
        "helps": pooled_verdict(_one_draw(0.005 + NOISE), RULE),
        "hurts": pooled_verdict(_one_draw(-0.005 + NOISE), RULE),
        "equivalent": pooled_verdict(_one_draw(0.0001 + NOISE), RULE),
        "equivalent, but certain": pooled_verdict(_one_draw(0.0018 + 0.5 * NOISE), RULE),
        "undecided, too few seeds": pooled_verdict(_one_draw(0.005 + NOISE[2:6]), RULE),
        "a single seed": pooled_verdict(np.full((3, 1, 2), 0.01), RULE),
        "replicates of the filter": pooled_verdict(of_draws + np.zeros((7, 2, 3)), RULE),
        "draws of few seeds": pooled_verdict(of_draws + np.zeros((7, 2, 1)), RULE),
        "one of two settings": among,
        "at a look": at_look,
        "at a look, seeds not used": replace(at_look, unused=2),
        "before the first look": pooled_verdict(_one_draw(0.005 + NOISE[:5]), looks),
        "one look": pooled_verdict(_one_draw(0.005 + NOISE), replace(RULE, looks=(8,))),
    }
    lines = [f"# {name}\n{_sentence(found)}\n" for name, found in verdicts.items()]
    check_golden("verdict_sentences.txt", "\n".join(lines))


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 3)), np.zeros((1, 0, 2)), np.full((1, 2, 2), np.nan), np.full((1, 2, 2), 1.5)]
)
def test_what_is_no_difference_of_accuracies_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="difference"):
        pooled_verdict(wrong, RULE)


@pytest.mark.parametrize("wrong", [{"margin": 0.0}, {"margin": 1.0}, {"alpha": 0.0}, {"alpha": 0.5}])
def test_what_is_no_rule_is_refused(wrong: dict[str, float]) -> None:
    values = {"margin": 0.003, "alpha": 0.05} | wrong
    with pytest.raises(ValueError, match="margin"):
        DecisionRule(margin=values["margin"], alpha=values["alpha"])


def test_looks_decide_by_the_t_test_alone_at_the_levels_of_a_look() -> None:
    """Differences and equivalence carry the same burden: the sign flips are shown and decide neither."""
    rule = replace(RULE, looks=(4, 6, 8))
    found = pooled_verdict(_one_draw(0.01 + NOISE[:4]), rule)
    assert found.tests is not None
    assert (found.outcome, found.tests.sign_flip, found.too_few_pairs) == ("helps", 0.125, False)
    levels = look_levels((4, 6, 8), 0.05)
    assert found.levels == levels
    assert found.estimate == mean_estimate(0.01 + NOISE[:4], 1 - levels.difference)
    low, high = (found.tests.equivalence_low, found.tests.equivalence_high)
    expected = mean_estimate(0.01 + NOISE[:4], 1 - 2 * levels.equivalence)
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_between_two_looks_nothing_is_decided() -> None:
    rule = replace(RULE, looks=(4, 6, 8))
    outcomes = [pooled_verdict(_one_draw(0.01 + NOISE[:n]), rule).outcome for n in (3, 4, 5, 6)]
    assert outcomes == ["undecided", "helps", "undecided", "helps"]


def test_settings_at_a_look_share_its_level_after_holm() -> None:
    rule = replace(RULE, looks=(4, 6, 8))
    found = verdicts_by_setting([(0.01 + NOISE[:6])[None]] * 2, rule)
    assert {verdict.levels for verdict in found} == {(0.05 / 3, 0.05 / 3)}
    assert {verdict.outcome for verdict in found} == {"helps"}


def test_a_setting_that_lacks_pairs_decides_at_its_studys_look() -> None:
    rule = replace(RULE, looks=(4, 6, 8))
    tables = [(0.02 + NOISE[:n])[None] for n in (8, 7, 6)]
    found = verdicts_by_setting(tables, rule, seeds=8)
    assert [(verdict.outcome, verdict.seeds, verdict.look) for verdict in found] == [("helps", n, 8) for n in (8, 7, 6)]
    between = verdicts_by_setting(tables[1:], rule, seeds=7)
    assert [(verdict.outcome, verdict.look) for verdict in between] == [("undecided", 0)] * 2
