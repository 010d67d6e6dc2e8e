"""From a study's runs to its verdicts."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stats import crossed_estimate
from pipeline.stats.comparisons import (
    Comparison,
    comparison_sentence,
    comparisons,
    needed_sentence,
    pooled_values,
    relabeled_comparison,
    replicates_needed,
    setting_values,
    settings_note,
)
from pipeline.stats.hypothesis_tests import seeds_for_both_tests
from pipeline.stats.replicates import seed_differences
from pipeline.stats.runs import Run
from pipeline.stats.sequential import decide
from pipeline.stats.verdict import Verdict
from tests.fixtures.golden import check_golden
from tests.fixtures.runs import PLAN, Draws, made_draws, made_runs


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


def test_pooling_takes_each_seed_once_and_complete_settings_alone() -> None:
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


def test_changed_labels_are_compared_with_given_ones_never_primary() -> None:
    tables = {"full": [0.80, 0.81, 0.79], "relabeled": [0.82, 0.84, 0.81], "filtered": [0.81, 0.81, 0.80]}
    compared = relabeled_comparison(made_runs(tables), replace(PLAN, primary="full"))
    assert compared is not None
    assert compared.pooled is not None
    assert (compared.treated, compared.control, compared.primary) == ("relabeled", "full", False)
    np.testing.assert_allclose(compared.pooled.estimate.mean, 0.07 / 3)
    assert pooled_values(compared, PLAN)["headline"].startswith("relabeled against full")
    assert relabeled_comparison(made_runs({"full": [0.8], "filtered": [0.8]}), PLAN) is None
    # Dropping is compared with changing labels, too.
    assert [c.control for c in comparisons(made_runs(tables), replace(PLAN, primary="full"))] == ["full", "relabeled"]


def test_each_draw_of_the_filter_has_its_own_changed_labels() -> None:
    draws: dict[str, Draws] = {
        "full": {"resnet18": [0.8, 0.8]},
        "relabeled": {"resnet18": [0.81, 0.82], "resnet18-r1": [0.83, 0.84]},
    }
    compared = relabeled_comparison(made_draws(draws), PLAN)
    assert compared is not None
    assert compared.pooled is not None
    assert (compared.pooled.draws, compared.pooled.seeds) == (2, 2)
    np.testing.assert_allclose(compared.pooled.estimate.mean, 0.025)


def test_draws_of_the_filter_are_a_level_of_their_own() -> None:
    """Two draws of two seeds: `full` is common to both, `random` is each draw's own."""
    own: Draws = {"resnet18": [0.90, 0.92], "resnet18-r1": [0.86, 0.84]}
    chance: Draws = {"resnet18": [0.89, 0.89], "resnet18-r1": [0.85, 0.85]}
    study = made_draws({"filtered": own, "random": chance, "full": {"resnet18": [0.88, 0.88]}})
    against_full, against_random = compare(study, "full"), compare(study)
    assert against_full.pooled is not None
    assert against_random.pooled is not None
    # Draws share their seeds, whatever the control: the interval is that of both factors.
    assert against_full.pooled.estimate.low == pytest.approx(crossed_estimate([[0.02, 0.04], [-0.02, -0.04]], 0.95).low)
    assert against_random.pooled.estimate.low == pytest.approx(
        crossed_estimate([[0.01, 0.03], [0.01, -0.01]], 0.95).low, rel=1e-4
    )
    assert (against_random.pooled.unit, against_random.pooled.draws, against_random.pooled.seeds) == ("draw", 2, 2)
    # No single number of seeds tells what two factors need.
    assert replicates_needed(against_full.pooled) is replicates_needed(against_random.pooled) is None
    assert needed_sentence(against_full.pooled) == ""


@pytest.mark.parametrize("spread", [0.1, 0.5, 2.0])
def test_the_seeds_needed_find_the_margin_by_both_tests(spread: float) -> None:
    found = compare(pair([-spread, 0.0, spread]))  # sd of -s, 0, s is s
    needed = replicates_needed(found.pooled)
    assert needed is not None
    assert needed.n == seeds_for_both_tests(spread, 0.5, 0.05, 0.8)
    assert needed.low <= needed.n <= needed.high
    # Of 3 values from 0.52 to 6.28 times their standard deviation.
    assert needed.high == seeds_for_both_tests(6.2847 * spread, 0.5, 0.05, 0.8)


def test_no_spread_tells_nothing_of_the_seeds_needed() -> None:
    for differences in ([1.0], [1.0, 1.0, 1.0]):
        assert replicates_needed(compare(pair(differences)).pooled) is None


def test_sentences() -> None:
    few = [1.0, 1.1, 0.9]
    found = {
        "seeds too few at any setting": compare([*pair(few, 32), *pair(few, 64)]),
        "seeds too few at one setting": compare([*pair([*few, 1.0, 1.2, 0.8, 1.0], 32), *pair([1.0, 1.1], 64)]),
        "enough seeds": compare(pair([*few, 1.0, 1.2, 0.8])),
        "one seed": compare(pair([1.0])),
        "nothing finished": compare(pair([None, None])),
    }
    lines = []
    for name, comparison in found.items():
        sentences = (
            comparison_sentence(comparison, "steps"),
            needed_sentence(comparison.pooled),
            settings_note(comparison),
        )
        lines += [f"# {name}", *filter(None, sentences), ""]
    assert settings_note(found["enough seeds"]) == ""
    check_golden("comparison_sentences.txt", "\n".join(lines))


def test_values_are_percentage_points_and_p_values() -> None:
    found = compare([*pair([1.0, 1.1, 0.9, 1.0, 1.2, 0.8, 1.0], 32), *pair([0.0, 0.1], 64)])
    first, second = setting_values(found, lambda setting: {"label": str(setting.batch_size)})
    assert (first["label"], first["control"], first["verdict"]["outcome"]) == ("32", "random", "helps")
    assert first["estimate"] == pytest.approx({"n": 7, "mean": 1.0, "sd": 0.129, "low": 0.881, "high": 1.119}, abs=1e-3)
    assert first["verdict"]["p"]["sign_flip"] == pytest.approx(2**-6)
    assert first["verdict"]["p"]["adjusted_difference"] == pytest.approx(2**-5)
    assert first["verdict"]["equivalence_low"] == pytest.approx(0.905, abs=1e-3)
    assert second["verdict"]["too_few_pairs"]


LOOKS = replace(PLAN, looks=(3, 5))


def three(filtered: Sequence[float | None], against_full: Sequence[float | None], batch_size: int = 32) -> list[Run]:
    """Filtered minus random, and minus full, in percentage points by seed."""
    treated = [None if value is None else 0.8 + value / 100 for value in filtered]
    full = [0.8 if a is None or b is None else 0.8 + (a - b) / 100 for a, b in zip(filtered, against_full, strict=True)]
    return made_runs({"filtered": treated, "random": [0.8] * len(filtered), "full": full}, batch_size)


def test_all_comparisons_stop_with_the_primary_one() -> None:
    """Against the full arm the later seeds would decide; they are shown and not used."""
    runs = three([2.0, 2.1, 1.9, 2.0, 2.0], [0.0, 3.0, -3.0, 9.0, 9.0])
    found = {row.control: row.pooled for row in comparisons(runs, LOOKS)}
    assert found["random"] is not None
    assert found["full"] is not None
    assert [(row.outcome, row.seeds, row.unused) for row in (found["random"], found["full"])] == [
        ("helps", 3, 2),
        ("undecided", 3, 2),
    ]


def test_an_undecided_study_goes_on_to_its_last_look() -> None:
    runs = three([2.0, -2.0, 1.0, -1.0, 0.5], [1.0] * 5)
    (pooled,) = (row.pooled for row in comparisons(runs, LOOKS) if row.primary)
    assert pooled is not None
    assert (pooled.outcome, pooled.seeds, pooled.unused) == ("undecided", 5, 0)
    (pooled,) = (row.pooled for row in comparisons([run for run in runs if run.seed < 4], LOOKS) if row.primary)
    assert pooled is not None
    assert (pooled.outcome, pooled.seeds, pooled.unused) == ("undecided", 3, 1)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_the_verdict_is_the_decision_that_stopped_the_training(seed: int, shift: float) -> None:
    """Some run diverged: its setting is left out from the look that has its seed, in both."""
    rng = np.random.default_rng(seed)
    values = [[round(float(value), 2) for value in rng.normal(shift, 0.5, 5)] for _ in range(2)]
    missing: list[float | None] = list(values[1])
    missing[int(rng.integers(5))] = None
    runs = [*pair(values[0], 32), *pair(missing, 64)]
    assert LOOKS.rule.design is not None
    decision = decide(
        LOOKS.rule.design,
        seed_differences({(run.setting, run.arm, run.seed): run.top1 for run in runs}, "random"),
        step=1 / PLAN.n_images,
    )
    pooled = compare_at_looks(runs)
    assert (pooled.outcome, pooled.seeds) == (decision.outcome, decision.seeds)


def compare_at_looks(runs: list[Run]) -> Verdict:
    (found,) = comparisons(runs, LOOKS)
    assert found.pooled is not None
    return found.pooled


def test_looks_are_among_the_values() -> None:
    found = comparisons(three([2.0, 2.1, 1.9, 2.0], [0.0] * 4), LOOKS)[0]
    looks = pooled_values(found, LOOKS)["verdict"]["looks"]
    assert (looks["stated"], looks["taken"], looks["unused"]) == ([3, 5], 3, 1)
    assert 0.02 < looks["difference"] < looks["equivalence"] < 0.05
    assert replicates_needed(found.pooled) is None
    assert pooled_values(compare(pair([1, 2, 3])), PLAN)["verdict"]["looks"] is None
