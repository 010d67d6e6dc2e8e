from collections.abc import Mapping

import numpy as np
import pytest

from pipeline.stats import crossed_difference, mean_estimate
from pipeline.stats.comparisons import arm_accuracies, controls_of, differences, pooled
from pipeline.stats.runs import Run, Setting


def run(
    arm: str, seed: int, top1: float | None, batch_size: int = 32, rate: float = 0.1, network: str = "resnet18"
) -> Run:
    return Run(
        setting=Setting("resnet18", batch_size, rate, 5e-4),
        arm=arm,
        filter_network=network,
        seed=seed,
        status="finished" if top1 is not None else "diverged",
        reason="" if top1 is not None else "the loss is not finite",
        peak_learning_rate=rate,
        n_train=100,
        steps=10,
        epochs=3.2,
        top1=top1,
        balanced_accuracy=top1,
        history=(),
    )


def runs(table: Mapping[str, list[float | None]], batch_size: int = 32, rate: float = 0.1) -> list[Run]:
    """Arm -> top-1 by seed."""
    return [run(arm, seed, top1, batch_size, rate) for arm, values in table.items() for seed, top1 in enumerate(values)]


def test_differences_pair_by_seed_in_percentage_points() -> None:
    study = runs({"filtered": [0.90, 0.80, 0.85], "random": [0.88, 0.79, 0.80]})
    (found,) = differences(study[::-1], "random", 0.95)
    expected = mean_estimate(np.subtract([90, 80, 85], [88, 79, 80]), 0.95)
    assert found.estimate is not None
    assert found.estimate.n == 3
    assert found.estimate.mean == pytest.approx(expected.mean)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((expected.low, expected.high))


def test_a_seed_without_its_partner_counts_in_no_difference() -> None:
    study = runs({"filtered": [0.90, None, 0.85], "full": [0.88, 0.79, None]})
    (found,) = differences(study, "full", 0.95)
    assert found.estimate is not None
    assert (found.estimate.n, found.estimate.low) == (1, None)
    assert found.estimate.mean == pytest.approx(2)


def test_settings_are_never_mixed() -> None:
    study = runs({"filtered": [0.9], "full": [0.8]}, rate=0.1) + runs({"filtered": [0.5], "full": [0.7]}, rate=0.01)
    found = {row.setting.learning_rate: row.estimate for row in differences(study, "full", 0.95)}
    assert found[0.1] is not None
    assert found[0.01] is not None
    assert (found[0.1].mean, found[0.01].mean) == pytest.approx((10, -20))


def test_pooling_takes_each_seed_once_and_leaves_incomplete_settings_out() -> None:
    study = (
        runs({"filtered": [0.91, 0.92], "random": [0.90, 0.90]}, 32)
        + runs({"filtered": [0.83, 0.80], "random": [0.80, 0.80]}, 64)
        + runs({"filtered": [0.10, None], "random": [0.90, 0.90]}, 128)
    )
    found = pooled(study, "random", 0.95)
    assert (found.settings, found.left_out) == (2, 1)
    assert found.estimate is not None
    # Seed 0: (1 + 3) / 2; seed 1: (2 + 0) / 2.
    assert found.estimate.n == 2
    assert found.estimate.mean == pytest.approx(1.5)
    assert found.estimate.sd == pytest.approx(np.std([2, 1], ddof=1))


def test_nothing_finished_gives_no_estimate() -> None:
    study = runs({"filtered": [None, None], "random": [None, None]})
    found = pooled(study, "random", 0.95)
    assert (found.estimate, found.settings, found.left_out) == (None, 0, 1)
    assert [row.estimate for row in differences(study, "random", 0.95)] == [None]
    assert {row.top1 for row in arm_accuracies(study, 0.95)} == {None}


def test_accuracy_counts_finished_and_planned_seeds() -> None:
    study = runs({"full": [0.8, 0.9, None]})
    (found,) = arm_accuracies(study, 0.95)
    assert found.top1 is not None
    assert (found.top1.n, found.planned) == (2, 3)
    assert found.top1.mean == pytest.approx(0.85)
    assert found.balanced_accuracy == pytest.approx(0.85)


def test_accuracies_come_by_setting_and_then_in_the_studys_order_of_arms() -> None:
    study = runs({"random": [0.8], "full": [0.8]}, 64) + runs({"random": [0.8], "full": [0.8]}, 32)
    found = [(row.setting.batch_size, row.arm) for row in arm_accuracies(study, 0.95)]
    assert found == [(32, "random"), (32, "full"), (64, "random"), (64, "full")]


def test_what_there_is_to_compare_with() -> None:
    assert controls_of(runs({"full": [0.8], "filtered": [0.8], "random_uniform": [0.8]})) == ["full", "random_uniform"]
    assert controls_of(runs({"full": [0.8], "random": [0.8]})) == []


def test_seeds_of_one_draw_of_the_filter_count_once() -> None:
    """Two draws of two seeds: `full` is common to both, `random` is each draw's own."""
    treated: dict[str, list[float | None]] = {"resnet18": [0.90, 0.92], "resnet18-r1": [0.86, 0.84]}
    chance: dict[str, list[float | None]] = {"resnet18": [0.89, 0.89], "resnet18-r1": [0.85, 0.85]}
    study = [run("full", seed, 0.88) for seed in range(2)]
    for arm, table in (("filtered", treated), ("random", chance)):
        study += [run(arm, seed, top1, network=draw) for draw, row in table.items() for seed, top1 in enumerate(row)]
    # Against what all draws have in common, seeds vary too: the interval is that of both factors.
    both = crossed_difference([[2, 4], [-2, -4]], 0.95)
    for control, means in (("full", [3, -3]), ("random", [2, 0])):
        found = pooled(study, control, 0.95)
        assert (found.draws, found.seeds) == (2, 2)
        (by_setting,) = differences(study, control, 0.95)
        for estimate in (found.estimate, by_setting.estimate):
            assert estimate is not None
            assert estimate.n == 2
            assert estimate.mean == pytest.approx(np.mean(means))
            assert estimate.sd == pytest.approx(np.std(means, ddof=1))
            expected = both if control == "full" else mean_estimate(means, 0.95)
            assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))
    accuracies = {row.arm: row for row in arm_accuracies(study, 0.95)}
    assert accuracies["filtered"].top1 is not None
    assert (accuracies["filtered"].top1.n, accuracies["filtered"].planned) == (2, 2)
    assert accuracies["filtered"].top1.sd == pytest.approx(np.std([0.91, 0.85], ddof=1))


def test_a_seed_that_one_draw_lacks_makes_the_setting_incomplete() -> None:
    table: dict[str, list[float | None]] = {"resnet18": [0.9, 0.9], "resnet18-r1": [0.9, None]}
    study = [run("filtered", seed, top1, network=draw) for draw, row in table.items() for seed, top1 in enumerate(row)]
    study += [run("full", seed, 0.8) for seed in range(2)]
    assert pooled(study, "full", 0.95).left_out == 1
