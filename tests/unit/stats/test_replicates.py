"""Pairs of runs, and what counts as a replicate."""

import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stats import crossed_estimate, mean_estimate
from pipeline.stats.hypothesis_tests import sign_flip_test
from pipeline.stats.replicates import (
    control_arms,
    differences,
    find_pairs,
    grid_settings,
    replicate_estimate,
    replicate_mean,
    replicate_sign_flip,
)
from tests.fixtures.runs import Draws, made_draws, made_run, made_runs

VALUES = np.random.default_rng(0).normal(0.5, 1, (3, 4))


def test_seeds_are_the_replicates_of_one_draw() -> None:
    one = VALUES[:1]
    assert replicate_estimate(one, 0.9) == mean_estimate(one[0], 0.9)
    assert replicate_sign_flip(one) == sign_flip_test(one[0])


def test_seeds_that_all_draws_share_are_not_independent() -> None:
    """What a seed does to one arm alone is in the difference of every draw: twenty draws do not average it out."""
    by_seed = np.array([-0.01, 0.002, 0.005, 0.011])
    table = by_seed + 1e-4 * np.random.default_rng(1).normal(size=(20, 4))
    assert replicate_mean(table).p_difference() > 0.5
    assert replicate_mean(table).error == pytest.approx(by_seed.std(ddof=1) / 2, rel=0.1)


def test_draws_and_seeds_are_crossed() -> None:
    assert replicate_estimate(VALUES, 0.9) == crossed_estimate(VALUES, 0.9)
    found = replicate_mean(VALUES).interval(0.9)
    assert found == pytest.approx((crossed_estimate(VALUES, 0.9).low, crossed_estimate(VALUES, 0.9).high))
    both = [float(sign_flip_test(VALUES.mean(axis=axis))) for axis in (0, 1)]
    assert replicate_sign_flip(VALUES) == max(both)


@pytest.mark.parametrize("wrong", [np.zeros((0, 3)), np.zeros(3), np.zeros((1, 2, 3))])
def test_what_is_no_table_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="table"):
        replicate_estimate(wrong, 0.9)


@given(st.lists(st.sampled_from(["filtered", "full", "random"]), max_size=40), st.randoms(use_true_random=False))
def test_both_runs_of_a_pair_differ_in_their_arm_alone(arms: list[str], random: Random) -> None:
    """Whatever finished, and in whatever order the runs stand."""
    study = [
        made_run(arm, seed=index % 3, top1=0.5 if index % 4 else None, batch_size=32 << index % 2)
        for index, arm in enumerate(arms)
    ]
    random.shuffle(study)
    for pairs in find_pairs(study, "random"):
        for treated, control in zip(pairs.treated.ravel(), pairs.control.ravel(), strict=True):
            first, second = study[treated], study[control]
            assert (first.arm, second.arm) == ("filtered", "random")
            assert first.setting == second.setting == pairs.setting
            assert (first.seed, first.filter_network) == (second.seed, second.filter_network)
            assert first.finished
            assert second.finished


@pytest.mark.parametrize("control", ["random", "full"])
@given(st.integers(1, 3), st.sets(st.integers(0, 41), max_size=4), st.randoms(use_true_random=False))
def test_rows_are_draws_and_columns_the_seeds_that_all_draws_have(
    control: str, n_draws: int, failed: set[int], random: Random
) -> None:
    """In whatever order the runs stand, and whichever of them have no result."""
    networks, seeds = [f"resnet18{suffix}" for suffix in ("", "-r1", "-r2")[:n_draws]], range(3)
    grid = [
        (arm, network, size, seed)
        for arm, size, seed in itertools.product(("filtered", "random", "full"), (32, 64), seeds)
        for network in (networks[:1] if arm == "full" else networks)
    ]
    study = [
        made_run(arm, seed, None if at in failed else 0.5, size, network=network)
        for at, (arm, network, size, seed) in enumerate(grid)
    ]
    lacking = {(arm, size, seed) for at, (arm, _, size, seed) in enumerate(grid) if at in failed}
    random.shuffle(study)
    found = find_pairs(study, control)
    assert [pairs.setting.batch_size for pairs in found] == [32, 64]
    for pairs in found:
        size = pairs.setting.batch_size
        both = [seed for seed in seeds if not {("filtered", size, seed), (control, size, seed)} & lacking]
        assert pairs.complete == (both == list(seeds))
        for rows, arm in ((pairs.treated, "filtered"), (pairs.control, control)):
            places = [[(study[row].arm, study[row].filter_network, study[row].seed) for row in draw] for draw in rows]
            expected = [[(arm, networks[0] if arm == "full" else name, seed) for seed in both] for name in networks]
            assert places == expected


def test_differences_are_treated_minus_control_by_seed() -> None:
    study = made_runs({"filtered": [0.90, 0.80, 0.85], "random": [0.88, 0.79, 0.80]})[::-1]
    (pairs,) = find_pairs(study, "random")
    assert pairs.complete
    assert differences(study, pairs) == pytest.approx(np.array([[0.02, 0.01, 0.05]]))


def test_a_seed_without_its_partner_is_in_no_pair() -> None:
    study = made_runs({"filtered": [0.90, None, 0.85], "full": [0.88, 0.79, None]})
    (pairs,) = find_pairs(study, "full")
    assert not pairs.complete
    assert differences(study, pairs) == pytest.approx(np.array([[0.02]]))


def test_all_draws_share_the_full_arm_and_not_the_random_arm() -> None:
    own: Draws = {"resnet18": [0.90, 0.92], "resnet18-r1": [0.86, 0.84]}
    chance: Draws = {"resnet18": [0.89, 0.89], "resnet18-r1": [0.85, 0.85]}
    study = made_draws({"filtered": own, "random": chance, "full": {"resnet18": [0.88, 0.87]}})
    (shared,), (random,) = (find_pairs(study, control) for control in ("full", "random"))
    assert differences(study, shared) == pytest.approx(np.array([[0.02, 0.05], [-0.02, -0.03]]))
    assert differences(study, random) == pytest.approx(np.array([[0.01, 0.03], [0.01, -0.01]]))


def test_seed_that_one_draw_lacks_makes_the_setting_incomplete() -> None:
    own: Draws = {"resnet18": [0.9, 0.9], "resnet18-r1": [0.9, None]}
    study = made_draws({"filtered": own, "full": {"resnet18": [0.8, 0.8]}})
    (pairs,) = find_pairs(study, "full")
    assert not pairs.complete
    assert [study[row].seed for row in pairs.treated.ravel()] == [0, 0]


def test_where_no_seed_is_in_all_draws_there_are_no_pairs() -> None:
    own: Draws = {"resnet18": [0.9, None], "resnet18-r1": [None, 0.9]}
    (pairs,) = find_pairs(made_draws({"filtered": own, "full": {"resnet18": [0.8, 0.8]}}), "full")
    assert pairs.treated.size == pairs.control.size == 0


def test_without_the_filtered_arm_no_setting_is_complete() -> None:
    (pairs,) = find_pairs(made_runs({"full": [0.8], "random": [0.8]}), "full")
    assert pairs.treated.size == pairs.control.size == 0
    assert not pairs.complete


def test_what_there_is_to_compare_with() -> None:
    study = made_runs({"full": [0.8], "filtered": [0.8], "random_uniform": [0.8]})
    assert control_arms(study) == ["full", "random_uniform"]
    assert control_arms(made_runs({"full": [0.8], "random": [0.8]})) == []


def test_settings_of_a_lone_filtered_arm_are_of_the_grid() -> None:
    filtered = [made_run("filtered", 0, 0.8, batch_size=size) for size in (16, 32)]
    assert [setting.batch_size for setting in grid_settings(filtered)] == [16, 32]
    both = [*filtered, made_run("full", 0, 0.8, batch_size=32)]
    assert [setting.batch_size for setting in grid_settings(both)] == [32]
