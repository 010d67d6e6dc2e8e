"""From a study's runs to its verdicts."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import PLAN, Draws, made_draws, made_runs

from pipeline.stats import crossed_difference, mean_estimate
from pipeline.stats.comparison_values import pooled_values, setting_values
from pipeline.stats.comparison_wording import needed_sentence, settings_note
from pipeline.stats.comparisons import Comparison, comparisons, replicates_needed
from pipeline.stats.power import seeds_for_both_tests
from pipeline.stats.runs import Run


def compare(runs: list[Run], control: str = "random") -> Comparison:
    (found,) = (comparison for comparison in comparisons(runs, PLAN) if comparison.control == control)
    return found


def pair(differences: Sequence[float | None], batch_size: int = 32) -> list[Run]:
    """A filtered and a random arm, so many percentage points apart by seed; None did not finish."""
    treated = [None if value is None else 0.8 + value / 100 for value in differences]
    return made_runs({"filtered": treated, "random": [0.8] * len(differences)}, batch_size)


def test_the_stated_comparison_comes_first_and_alone_is_primary() -> None:
    runs = made_runs({"filtered": [0.9], "random": [0.9], "full": [0.9]})
    for primary, order in (("random", ["random", "full"]), ("full", ["full", "random"])):
        found = comparisons(runs, replace(PLAN, primary=primary))
        assert [(row.control, row.primary) for row in found] == [(order[0], True), (order[1], False)]
    assert [row.primary for row in comparisons(runs, replace(PLAN, primary="random_uniform"))] == [False, False]
    assert comparisons(made_runs({"full": [0.9], "random": [0.9]}), PLAN) == []


def test_pooling_takes_each_seed_once_and_leaves_incomplete_settings_out() -> None:
    found = compare([*pair([1, 2], 32), *pair([3, 0], 64), *pair([-70, None], 128)])
    assert found.pooled is not None
    assert (found.pooled.settings, found.left_out) == (2, 1)
    # Seed 0: (1 + 3) / 2; seed 1: (2 + 0) / 2.
    assert found.pooled.estimate.n == 2
    assert found.pooled.estimate.mean == pytest.approx(0.015)
    assert found.pooled.estimate.sd == pytest.approx(np.std([0.02, 0.01], ddof=1))


def test_settings_are_never_mixed_and_all_are_there() -> None:
    found = compare([*pair([10.0, 10.0], 32), *pair([-20.0, -20.0], 64), *pair([None, None], 128)])
    assert [setting.batch_size for setting in found.settings] == [32, 64, 128]
    means = [verdict and verdict.estimate.mean for verdict in found.by_setting]
    assert means == [pytest.approx(0.1), pytest.approx(-0.2), None]


def test_nothing_finished_gives_no_verdict() -> None:
    found = compare(pair([None, None]))
    assert (found.pooled, found.left_out, found.by_setting) == (None, 1, (None,))
    values = pooled_values(found, PLAN)
    assert (values["estimate"], values["verdict"], values["needed"]) == (None, None, None)
    assert values["sentence"].startswith("filtered against random at equal steps: nothing to compare, since")


def test_draws_of_the_filter_are_a_level_of_their_own() -> None:
    """Two draws of two seeds: `full` is common to both, `random` is each draw's own."""
    own: Draws = {"resnet18": [0.90, 0.92], "resnet18-r1": [0.86, 0.84]}
    chance: Draws = {"resnet18": [0.89, 0.89], "resnet18-r1": [0.85, 0.85]}
    study = made_draws({"filtered": own, "random": chance, "full": {"resnet18": [0.88, 0.88]}})
    against_full, against_random = compare(study, "full"), compare(study)
    assert against_full.pooled is not None
    assert against_random.pooled is not None
    # Against what all draws have in common, seeds vary too: the interval is that of both factors.
    assert against_full.pooled.estimate.low == pytest.approx(
        crossed_difference([[0.02, 0.04], [-0.02, -0.04]], 0.95).low
    )
    assert against_random.pooled.estimate.low == pytest.approx(mean_estimate([0.02, 0.0], 0.95).low, rel=1e-4)
    assert (against_random.pooled.unit, against_random.pooled.draws, against_random.pooled.seeds) == ("draw", 2, 2)
    assert "conditional" not in pooled_values(against_random, PLAN)["sentence"]
    assert "conditional on this one draw" in pooled_values(compare(pair([1, 2, 3])), PLAN)["sentence"]
    # No single number of seeds tells what two factors need.
    assert replicates_needed(against_full) is None
    assert needed_sentence(against_full) == ""


@pytest.mark.parametrize("spread", [0.1, 0.5, 2.0])
def test_the_seeds_needed_find_the_margin_by_both_tests(spread: float) -> None:
    found = compare(pair([-spread, 0.0, spread]))  # sd of -s, 0, s is s
    needed = replicates_needed(found)
    assert needed is not None
    assert needed.n == seeds_for_both_tests(spread, 0.5, 0.05, 0.8)
    assert needed.low <= needed.n <= needed.high
    # Of 3 values from .52 to 6.28 times their standard deviation.
    assert needed.high == seeds_for_both_tests(6.2847 * spread, 0.5, 0.05, 0.8)
    said = f"found with a chance of 0.8 by {needed.n} seeds or more ({needed.low} to {needed.high:,} within the "
    assert said in needed_sentence(found)


def test_no_spread_tells_nothing_of_the_seeds_needed() -> None:
    for differences in ([1.0], [1.0, 1.0, 1.0]):
        assert replicates_needed(compare(pair(differences))) is None


def test_a_note_says_where_seeds_are_too_few_for_any_claim() -> None:
    few = [*pair([1.0, 1.1, 0.9], 32), *pair([1.0, 1.1, 0.9], 64)]
    note = settings_note(compare(few))
    assert note == (
        "Too few to claim a difference at any setting: with 3 seeds the sign-flip test gives p = 0.5 at best, "
        "after Holm for 2 settings, and can reach 0.05 from 7 on."
    )
    assert settings_note(compare(pair([1.0, 1.1, 0.9, 1.0, 1.2, 0.8]))) == ""
    assert "no test" in settings_note(compare(pair([1.0])))


def test_values_are_percentage_points_and_p_values() -> None:
    found = compare([*pair([1.0, 1.1, 0.9, 1.0, 1.2, 0.8, 1.0], 32), *pair([0.0, 0.1], 64)])
    first, second = setting_values(found, lambda setting: {"label": str(setting.batch_size)})
    assert (first["label"], first["control"], first["verdict"]["outcome"]) == ("32", "random", "helps")
    assert first["estimate"] == pytest.approx({"n": 7, "mean": 1.0, "sd": 0.129, "low": 0.881, "high": 1.119}, abs=1e-3)
    assert first["verdict"]["p"]["sign_flip"] == pytest.approx(2**-6)
    assert first["verdict"]["p"]["adjusted_difference"] == pytest.approx(2**-5)
    assert first["verdict"]["equivalence_low"] == pytest.approx(0.905, abs=1e-3)
    assert second["verdict"]["too_few_pairs"]
