"""Verdicts on the paired runs of two experiments, against SciPy and by properties."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.commands.compare.experiments import EvaluationImages, Experiment, KeptImages
from pipeline.commands.compare.verdicts import (
    ArmVerdict,
    ColumnDifference,
    StudyComparison,
    compare_filters,
    compare_study_runs,
)
from pipeline.errors import InputError
from pipeline.stats.verdict import DecisionRule, Verdict
from tests.fixtures.experiments import gains, run_rows

RULE = DecisionRule(margin=0.003, alpha=0.05)


def compare(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> StudyComparison:
    return compare_study_runs("digits", a, b, RULE, step=0.0)


def pooled(result: StudyComparison, arm: str = "filtered") -> Verdict:
    """The verdict on one arm, which has one."""
    (verdict,) = (of_arm.verdict for of_arm in result.pooled if of_arm.arm == arm)
    assert verdict is not None
    return verdict


def noisy(row: Any) -> float:
    return float(np.random.default_rng([row["seed"], row["batch_size"], len(row["arm"])]).normal(0.004, 0.003))


def test_each_setting_and_the_pool_agree_with_scipy() -> None:
    seeds = range(6)
    result = compare(run_rows(seeds=seeds), run_rows(seeds=seeds, change=gains(noisy)))
    by_setting = []
    for row in result.settings:
        differences = [noisy({**row.setting._asdict(), "seed": seed}) for seed in seeds]
        by_setting.append(differences)
        assert row.verdict.tests is not None
        expected = stats.ttest_1samp(differences, 0)
        assert row.verdict.tests.t == pytest.approx(expected.pvalue)
        interval = (row.verdict.estimate.low, row.verdict.estimate.high)
        assert interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
        assert row.verdict.comparisons == 4
    for arm in result.pooled:
        rows = [row for row, of in zip(by_setting, result.settings, strict=True) if of.setting.arm == arm.arm]
        assert arm.verdict is not None
        assert arm.verdict.tests is not None
        assert arm.verdict.tests.t == pytest.approx(stats.ttest_1samp(np.mean(rows, axis=0), 0).pvalue)
        assert (arm.verdict.estimate.n, arm.verdict.settings, arm.verdict.comparisons, arm.left_out) == (6, 2, 2, 0)
    assert result.pairs == 24


@pytest.mark.parametrize(("gain", "outcome"), [(0.01, "helps"), (-0.01, "hurts"), (0.0, "equivalent")])
def test_seven_seeds_tell_a_clear_change_of_each_of_two_arms(gain: float, outcome: str) -> None:
    b = run_rows(seeds=range(7), change=gains(lambda row: gain + 1e-4 * row["seed"]))
    result = compare(run_rows(seeds=range(7)), b)
    assert [pooled(result, arm).outcome for arm in ("filtered", "full")] == [outcome, outcome]


@given(st.integers(0, 1000))
def test_exchanged_experiments_exchange_the_signs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (run_rows(change=gains(lambda row: float(rng.normal(0, 0.01)))) for _ in range(2))
    for row in a:
        row["fingerprint"] += " of A"
    there, back = compare(a, b), compare(b, a)
    assert pooled(there).estimate.mean == pytest.approx(-pooled(back).estimate.mean)
    assert [row.setting for row in there.settings] == [row.setting for row in back.settings]
    ways = (pooled(there).tests, pooled(back).tests)
    assert ways[0] is not None
    assert ways[1] is not None
    assert ways[0].adjusted_difference == pytest.approx(ways[1].adjusted_difference)


@given(st.permutations(range(12)))
def test_the_order_of_the_rows_changes_nothing(order: list[int]) -> None:
    a, b = run_rows(), run_rows(change=gains(noisy))
    assert compare(a, [b[at] for at in order]) == compare(a, b)


def test_the_same_run_is_not_evidence() -> None:
    """A new filter leaves arm `full` as it was: its zeros would dilute the effect on the others."""
    b = run_rows(change=lambda row: gains(noisy)(row) if row["arm"] == "filtered" else {})
    result = compare(run_rows(), b)
    assert (result.pairs, result.same_runs) == (6, 6)
    assert {row.setting.arm for row in result.settings} == {"filtered"}
    assert (
        result.pooled == compare(run_rows(arms=["filtered"]), run_rows(arms=["filtered"], change=gains(noisy))).pooled
    )
    assert compare(run_rows(), run_rows()).pooled == []


def test_settings_of_one_experiment_alone_are_named() -> None:
    result = compare(
        run_rows(batch_sizes=[32, 64]), run_rows(batch_sizes=[64, 512], arms=["full"], change=gains(noisy))
    )
    assert [(only.arm, only.batch_size) for only in result.only_a] == [("filtered", 32), ("filtered", 64), ("full", 32)]
    assert [(only.arm, only.batch_size) for only in result.only_b] == [("full", 512)]
    assert [row.setting.batch_size for row in result.settings] == [64]


@pytest.mark.parametrize("column", ["model", "simulated_workers", "learning_rate", "weight_decay"])
def test_runs_with_different_keys_are_not_pairs(column: str) -> None:
    other = {"model": "resnet34", "simulated_workers": 8, "learning_rate": 0.04, "weight_decay": 0.0}[column]
    result = compare(run_rows(), run_rows(change=lambda row: {column: other}))
    assert (result.pairs, result.settings, result.pooled) == (0, [], [])
    assert len(result.only_a) == len(result.only_b) == 4


def test_an_arm_without_a_filter_pairs_whatever_the_filter() -> None:
    result = compare(run_rows(), run_rows(networks=["resnet34"], change=gains(noisy)))
    assert [row.setting.arm for row in result.settings] == ["full", "full"]


def test_seeds_of_one_alone_and_runs_without_a_result_are_counted() -> None:
    def unlucky(row: Any) -> dict[str, Any]:
        diverged = row["arm"] == "full" and row["batch_size"] == 128 and row["seed"] == 1
        return {"status": "diverged", "top1": None} if diverged else dict(gains(noisy)(row))

    result = compare(run_rows(), run_rows(seeds=[0, 1, 2, 3], change=unlucky))
    assert (result.runs_a, result.runs_b, result.pairs) == (12, 16, 11)
    assert (result.unfinished, result.unpaired) == (1, 4)
    assert [(of.arm, of.left_out) for of in result.pooled] == [("filtered", 0), ("full", 1)]
    assert (pooled(result).settings, pooled(result, "full").settings) == (2, 1)
    assert [row.verdict.estimate.n for row in result.settings] == [3, 3, 3, 2]


def test_draws_of_the_filter_are_the_replicates() -> None:
    networks = ["resnet18", "resnet18-r1", "resnet18-r2"]
    result = compare(run_rows(networks=networks), run_rows(networks=networks, change=gains(noisy)))
    by_arm = {row.setting.arm: row.verdict for row in result.settings}
    assert (by_arm["filtered"].unit, by_arm["filtered"].draws, by_arm["full"].unit) == ("draw", 3, "seed")
    filtered, full = pooled(result), pooled(result, "full")
    assert (filtered.unit, filtered.draws, filtered.seeds, filtered.settings) == ("draw", 3, 3, 2)
    assert (full.unit, full.draws, full.seeds, full.settings) == ("seed", 1, 3, 2)


def test_what_a_change_does_to_one_arm_is_not_diluted_by_another() -> None:
    def of_filtered(row: Any) -> float:
        return float(noisy(row) / 10 + 0.006 * (row["arm"] == "filtered"))

    arms = ["full", "filtered", "random"]
    result = compare(
        run_rows(seeds=range(7), arms=arms), run_rows(seeds=range(7), arms=arms, change=gains(of_filtered))
    )
    assert [of_arm.arm for of_arm in result.pooled] == ["filtered", "full", "random"]
    outcomes = [pooled(result, of_arm.arm).outcome for of_arm in result.pooled]
    assert outcomes == ["helps", "equivalent", "equivalent"]
    assert {pooled(result, of_arm.arm).comparisons for of_arm in result.pooled} == {3}


def test_draws_with_no_seed_in_common_have_no_verdict() -> None:
    def one_seed_a_draw(row: Any) -> dict[str, Any]:
        finished = row["seed"] == len(row["filter_network"]) % 2
        return dict(gains(noisy)(row)) if finished else {"status": "skipped", "top1": None}

    networks = ["resnet18", "resnet18-r1"]
    a = run_rows(arms=["filtered"], networks=networks, seeds=[0, 1])
    b = run_rows(arms=["filtered"], networks=networks, seeds=[0, 1], change=one_seed_a_draw)
    result = compare(a, b)
    assert result.pairs == 4
    assert (result.settings, result.pooled) == ([], [ArmVerdict(arm="filtered", verdict=None, left_out=2)])


def test_a_setting_with_a_draw_that_always_failed_has_no_verdict() -> None:
    """The mean of the draws that are left would be of lucky ones."""

    def unlucky(row: Any) -> dict[str, Any]:
        failed = row["batch_size"] == 128 and row["filter_network"] == "resnet18-r1"
        return {"status": "diverged", "top1": None} if failed else dict(gains(noisy)(row))

    networks = ["resnet18", "resnet18-r1", "resnet18-r2"]
    a = run_rows(arms=["filtered"], networks=networks)
    result = compare(a, run_rows(arms=["filtered"], networks=networks, change=unlucky))
    assert [(row.setting.batch_size, row.verdict.draws) for row in result.settings] == [(32, 3)]
    assert (result.unfinished, result.pooled[0].left_out) == (3, 1)


def test_other_differences_are_reported() -> None:
    def changed(row: Any) -> dict[str, Any]:
        return {
            **gains(noisy)(row),
            "optimizer": "muon",
            "n_train": 70 + row["seed"] if row["arm"] == "filtered" else 80,
            "settings": row["settings"].replace("null", "1.0"),
        }

    result = compare(run_rows(), run_rows(change=changed))
    assert result.differing == [
        ColumnDifference(column="optimizer", pairs=12, a="sgd", b="muon"),
        ColumnDifference(column="n_train", pairs=6, a=None, b=None),
        ColumnDifference(column="clip_norm", pairs=12, a=None, b=1.0),
    ]


def test_a_run_that_stands_twice_is_refused() -> None:
    rows = run_rows()
    with pytest.raises(InputError):
        compare([*rows, rows[0]], rows)


sets = st.frozensets(st.sampled_from("abcdefgh"))


@given(sets, sets)
def test_filters_are_compared_as_sets_of_paths(a: frozenset[str], b: frozenset[str]) -> None:
    def experiment(name: str, paths: frozenset[str], other: str) -> Experiment:
        kept = KeptImages(paths=paths, n_total=8)
        return Experiment(
            name=name,
            studies={},
            filters={"resnet18": kept, other: kept},
            n_images=1,
            n_planted=None,
            evaluation_images=EvaluationImages(images=Counter(), unknown={}),
            margin=None,
            confidence=None,
        )

    (result,) = compare_filters(experiment("a", a, "resnet34"), experiment("b", b, "resnet50"))
    assert (result.network, result.share_a, result.share_b) == ("resnet18", len(a) / 8, len(b) / 8)
    assert result.jaccard == (len(a & b) / len(a | b) if a | b else 1)
    assert (result.only_a, result.only_b) == (len(a - b), len(b - a))
