from dataclasses import replace

import numpy as np
import pytest

from pipeline.stats.runs import arm_accuracies
from tests.fixtures.runs import made_draws, made_runs

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


def test_seeds_that_agree_leave_the_interval_of_counts() -> None:
    (found,) = arm_accuracies(made_runs({"full": [0.8, 0.8, 0.8]}), 0.95, 360)
    assert found.top1 is not None
    assert found.top1.sd == pytest.approx(0)
    assert found.top1.low is not None
    assert 0.8 - 1 / 360 < found.top1.low < 0.8 - 0.1 / 360
