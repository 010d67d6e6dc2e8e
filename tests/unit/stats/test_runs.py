"""Runs as the statistics read them: accuracies by arm, mean learning curves, settings."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.stats.runs import Setting, arm_accuracies, describe, learning_curves, varying_fields
from tests.fixtures.runs import made_draws, made_run, made_runs

N = 1_000_000  # test images, so many that rounding to them does not show


def test_accuracy_counts_finished_and_planned_seeds() -> None:
    (found,) = arm_accuracies(made_runs({"full": [0.8, 0.9, None]}), 0.95, N)
    assert found.top1 is not None
    assert (found.top1.n, found.planned) == (2, 3)
    assert found.top1.mean == pytest.approx(0.85)
    assert found.balanced_accuracy == pytest.approx(0.85)


def test_an_arm_of_which_nothing_finished_has_none() -> None:
    assert {row.top1 for row in arm_accuracies(made_runs({"filtered": [None, None], "full": [None]}), 0.95, N)} == {
        None
    }


def test_steps_and_epochs_are_those_of_finished_runs() -> None:
    diverged, *finished = made_runs({"full": [None, 0.8, 0.9]})
    (found,) = arm_accuracies([replace(diverged, steps=4, epochs=1.3), *finished], 0.95, N)
    assert (found.steps, found.epochs) == ((10, 10), (3.2, 3.2))
    (nothing,) = arm_accuracies([replace(diverged, steps=4, epochs=1.3)], 0.95, N)
    assert (nothing.steps, nothing.epochs, nothing.n_train) == (None, None, (100, 100))


def test_draws_of_unlike_sizes_give_the_range_of_their_steps() -> None:
    first, second = made_draws({"filtered": {"resnet18": [0.9], "resnet18-r1": [0.8]}})
    (found,) = arm_accuracies([replace(first, n_train=90, steps=9, epochs=3.0), second], 0.95, N)
    assert (found.n_train, found.steps, found.epochs) == ((90, 100), (9, 10), (3.0, 3.2))


def test_accuracies_come_by_setting_then_in_the_order_of_arms() -> None:
    study = made_runs({"random": [0.8], "full": [0.8]}, 64) + made_runs({"random": [0.8], "full": [0.8]}, 32)
    found = [(row.setting.batch_size, row.arm) for row in arm_accuracies(study, 0.95, N)]
    assert found == [(32, "random"), (32, "full"), (64, "random"), (64, "full")]


def test_draws_of_the_filter_count_once_each() -> None:
    (found,) = arm_accuracies(
        made_draws({"filtered": {"resnet18": [0.90, 0.92], "resnet18-r1": [0.86, 0.84]}}), 0.95, N
    )
    assert found.top1 is not None
    assert (found.top1.n, found.planned) == (2, 2)
    assert found.top1.sd == pytest.approx(np.std([0.91, 0.85], ddof=1))


def test_a_seed_that_all_draws_share_is_in_the_interval() -> None:
    """It moves the accuracies of all draws alike, so that their means agree more than the arm is known."""
    draws = made_draws({"filtered": {"resnet18": [0.70, 0.90], "r1": [0.70, 0.90], "r2": [0.701, 0.901]}})
    (found,) = arm_accuracies(draws, 0.95, N)
    assert found.top1 is not None
    assert (found.top1.low, found.top1.high) != (None, None)
    assert found.top1.high - found.top1.low > 0.1  # type: ignore[operator]


def test_seeds_that_a_draw_lacks_are_in_no_interval() -> None:
    draws = made_draws({"filtered": {"resnet18": [0.8, 0.9, 0.1], "r1": [0.8, 0.9, None]}})
    whole = made_draws({"filtered": {"resnet18": [0.8, 0.9], "r1": [0.8, 0.9]}})
    assert [row.top1 for row in arm_accuracies(draws, 0.95, N)] == [row.top1 for row in arm_accuracies(whole, 0.95, N)]
    (apart,) = arm_accuracies(made_draws({"filtered": {"resnet18": [0.8, None], "r1": [None, 0.9]}}), 0.95, N)
    assert apart.top1 is not None
    assert (apart.top1.n, apart.top1.low) == (2, None)
    assert apart.top1.mean == pytest.approx(0.85)


def test_seeds_that_agree_leave_the_interval_of_counts() -> None:
    (found,) = arm_accuracies(made_runs({"full": [0.8, 0.8, 0.8]}), 0.95, 360)
    assert found.top1 is not None
    assert found.top1.sd == pytest.approx(0)
    assert found.top1.low is not None
    assert 0.8 - 1 / 360 < found.top1.low < 0.8 - 0.1 / 360


def test_means_are_over_finished_seeds_and_bridge_nonfinite_values() -> None:
    whole = replace(made_run("full", 0, 0.5), history=((32, 2.0), (64, 1.0), (96, 0.5)))
    infinite_once = replace(made_run("full", 1, 0.5), history=((32, 3.0), (64, None), (96, 1.0)))
    diverged = replace(made_run("full", 2, None), history=((32, 9.0),))
    (curve,) = learning_curves([whole, infinite_once, diverged], "train_loss", ())
    assert (curve["arm"], curve["batch_size"], curve["n"], curve["examples"]) == ("full", 32, 2, [32, 64, 96])
    assert curve["values"] == pytest.approx([2.5, 1.5, 0.75])


def test_draws_of_unlike_numbers_of_images_are_one_curve() -> None:
    """Lines of one slope through records at unlike steps."""
    draws = [
        replace(made_run("filtered", 0, 0.5, network=name), history=tuple((at, 2 - at / 1000) for at in records))
        for name, records in (("resnet18", (100, 200, 300, 400)), ("resnet18-r1", (90, 190, 290, 390)))
    ]
    (curve,) = learning_curves(draws, "train_loss", ())
    assert (curve["n"], curve["examples"]) == (2, [100, 200, 300])
    assert curve["values"] == pytest.approx([1.9, 1.8, 1.7])


def test_accuracy_is_a_curve_only_with_values_before_the_last_step() -> None:
    history = ((320, 1.0),)
    on_the_way = [
        replace(made_run("full", seed, top1), history=history, accuracy=((160, top1 / 2),))
        for seed, top1 in enumerate((0.4, 0.6))
    ]
    at_its_end = replace(made_run("random", 0, 0.5), history=history)
    (curve,) = learning_curves([*on_the_way, at_its_end], "top1", ())
    assert (curve["arm"], curve["examples"]) == ("full", [160, 320])
    assert curve["values"] == pytest.approx([0.25, 0.5])


def test_a_test_loss_is_of_the_runs_that_measured_it() -> None:
    history = ((320, 1.0),)
    measured = [
        replace(made_run("full", seed, 0.5), loss=loss, history=history, test_loss=((160, 2 * loss),))
        for seed, loss in enumerate((0.4, 0.6))
    ]
    never_finite = replace(made_run("full", 2, 0.5), history=history, accuracy=((160, 0.1),))
    (curve,) = learning_curves([*measured, never_finite], "test_loss", ())
    assert (curve["n"], curve["examples"]) == (2, [160, 320])
    assert curve["values"] == pytest.approx([1.0, 0.5])


def test_the_horizontal_axis_may_be_steps_or_epochs_of_the_arm() -> None:
    runs = [
        replace(made_run(arm, 0, 0.5), n_train=n_train, history=((320, 2.0), (640, 1.0)))
        for arm, n_train in (("filtered", 80), ("full", 100))
    ]
    steps = learning_curves(runs, "train_loss", (), "steps")
    assert [(curve["examples"], curve["x"]) for curve in steps] == [([320, 640], [10, 20])] * 2
    epochs = learning_curves(runs, "train_loss", (), "epochs")
    assert {curve["arm"]: curve["x"] for curve in epochs} == {"filtered": [4, 8], "full": [3.2, 6.4]}
    assert all("x" not in curve for curve in learning_curves(runs, "train_loss", ()))


def test_only_what_varies_is_named() -> None:
    settings = [Setting("resnet18", 32, rate, 5e-4) for rate in (0.05, 0.1)] + [Setting("resnet18", 64, 0.05, 5e-4)]
    assert varying_fields(settings) == ("learning_rate",)
    assert describe(settings[1], varying_fields(settings)) == "lr 0.1"
    assert describe(settings[1], ("model", "weight_decay")) == "resnet18, wd 0.0005"
    assert describe(settings[0], varying_fields(settings[:1])) == ""
